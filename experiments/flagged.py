"""Settings as dataclasses: one field a flag, its default, help and allowed values in one place.

    @dataclass(frozen=True)
    class Settings(Flagged):
        workers: int = flag(6, "N")

A subclass checks what it has to in `__post_init__`, after `check_texts`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from absl import flags

from cbdybw.errors import BadInput


def flag(default: Any, text: str, allowed: tuple[str, ...] = ()) -> Any:
    """A field of a `Flagged` dataclass: str, int, float or bool."""
    return dataclasses.field(default=default, metadata={"help": text, "allowed": allowed})


class Flagged:
    """Base of frozen dataclasses whose fields are made by `flag`."""

    def check_texts(self) -> None:
        """Whether each text would survive in a flagfile, and is one of those that are allowed."""
        for field in dataclasses.fields(self):
            value, allowed = getattr(self, field.name), field.metadata["allowed"]
            if field.type != "str":
                continue
            if not value.isprintable() or value != value.strip():
                raise BadInput(
                    f"--{field.name}={value!r}: would not survive in a flagfile; use printable "
                    "characters without blanks at either end"
                )
            if allowed and value not in allowed:
                raise BadInput(f"--{field.name}={value}: not known; use {' or '.join(allowed)}")

    def differing(self, other: Self, besides: tuple[str, ...]) -> list[str]:
        """Flags of this one whose value is not the other's, without those in `besides`."""
        return [
            f"--{field.name}={_text(getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if field.name not in besides and getattr(self, field.name) != getattr(other, field.name)
        ]

    def flagfile(self) -> str:
        """The flags as lines of a --flagfile, in full; reading them gives the same settings."""
        values = dataclasses.asdict(self)
        return "".join(f"--{name}={_text(value)}\n" for name, value in values.items())

    @classmethod
    def define_flags(cls, values: flags.FlagValues = flags.FLAGS) -> None:
        """Define a flag for every field."""
        define = {
            "str": flags.DEFINE_string,
            "int": flags.DEFINE_integer,
            "float": flags.DEFINE_float,
            "bool": flags.DEFINE_bool,
        }
        for field in dataclasses.fields(cls):
            allowed = field.metadata["allowed"]
            text = field.metadata["help"] + (f" ({', '.join(allowed)})" if allowed else "")
            define[field.type](field.name, field.default, text, flag_values=values)

    @classmethod
    def from_flags(cls, values: flags.FlagValues = flags.FLAGS) -> Self:
        """The settings that the parsed flags give."""
        return cls(**{field.name: values[field.name].value for field in dataclasses.fields(cls)})

    @classmethod
    def from_flagfile(cls, text: str) -> Self:
        """The settings that a flag file gives: `flagfile` names all flags, one written by hand may
        name some of them, a line each, among blank lines and comments (#)."""
        read = {"str": str, "int": int, "float": float, "bool": {"true": True, "false": False}.get}
        types = {field.name: field.type for field in dataclasses.fields(cls)}
        values = {}
        for line in text.splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            name, _, value = line.removeprefix("--").partition("=")
            if name not in types:
                raise BadInput(f"{line}: no flag of this version; record the run again")
            try:
                values[name] = read[types[name]](value)
            except ValueError:
                raise BadInput(f"{line}: {value!r} is no {types[name]}; run it again") from None
        return cls(**values)


def parse_flags(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """absl's parser, whose complaints become BadInput."""
    try:
        rest = values(argv)
    except UnicodeDecodeError:
        raise BadInput("--flagfile: not a text file; give one with a flag on each line") from None
    except flags.Error as error:
        raise BadInput(" ".join(str(error).split())) from None
    if rest[1:]:
        raise BadInput(f"{rest[1]}: not a flag; write --name=value")
    return rest


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
