"""Texts as bags of words: 20 Newsgroups and Reuters-21578, tokenised once and then cached.

Both are read from a folder of the user's; 20 Newsgroups is downloaded by scikit-learn where none is
named. [choice] All documents are taken, those for training and those for testing, as topics know no
labels; of Reuters those of the ModApte split (TOPICS="YES", 9,603 for training and 3,299 for
testing). A word is three or more letters a-z with neither a letter, a digit nor "_" beside them, in
lower case, in no list of English stop words, in at least five documents and at most half of them.
Documents without such a word are left out. Within a document the words are in the order of their
numbers: a bag has no order of its own.
"""

from __future__ import annotations

import hashlib
import html
import http.client
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.learning.corpus import Corpus, generate
from cbdybw.storage import atomic

TEXTS = ("newsgroups", "reuters", "generated")

WORD = r"\b[a-z]{3,}\b"
FEWEST_DOCUMENTS, LARGEST_SHARE = 5, 0.5

NEWSGROUPS = "20news-bydate"
NEWSGROUPS_PARTS = (f"{NEWSGROUPS}-train", f"{NEWSGROUPS}-test")
REUTERS = "reuters21578"

FORMAT = 1
MANIFEST = "manifest.json"
WORDS, SIZES, VOCABULARY = "words.npy", "sizes.npy", "vocabulary.txt"

Log = Callable[[str], None]


def corpus(
    dataset: str,
    raw_dir: str | os.PathLike = "",
    cache: str | os.PathLike = "data/texts",
    documents: int = 0,
    seed: int = 0,
    log: Log = print,
) -> Corpus:
    """The corpus `dataset`, one of TEXTS.

    Args:
        raw_dir: folder of the original files, or the one that it lies in.
        cache: folder for tokenised corpora. A raw_dir of the same name is taken to hold the same
            files as it did then.
        documents: take only so many, drawn by the seed; 0 takes all.
        seed: of the drawing, and of the generated corpus.

    Raises BadInput where the files cannot be had or are damaged, the cache is damaged or cannot be
    written, or there are fewer documents than asked for.
    """
    if dataset not in TEXTS:
        raise BadInput(f"--dataset={dataset}: no texts of this name; use {', '.join(TEXTS)}")
    if dataset == "generated":
        whole = generate(seed=seed)[0]
    else:
        whole = _cached(dataset, os.fspath(raw_dir), Path(cache), log)
    return whole.drawn(documents, seed) if documents else whole


def tokenised(
    name: str,
    texts: Sequence[str],
    fewest: int = FEWEST_DOCUMENTS,
    share: float = LARGEST_SHARE,
) -> Corpus:
    """The texts as bags of words; only words in `fewest` documents or more are kept, and in a
    `share` of all at most."""
    from sklearn.feature_extraction.text import CountVectorizer  # takes a second

    vectorizer = CountVectorizer(
        stop_words="english", token_pattern=WORD, min_df=fewest, max_df=share, dtype=np.int32
    )
    try:
        bags = vectorizer.fit_transform(texts)
    except ValueError as error:  # no words, or none that are neither rare nor everywhere
        raise BadInput(f"{name}: {len(texts)} texts have no vocabulary ({error})") from error
    bags.sort_indices()
    sizes = np.asarray(bags.sum(axis=1), np.int64).ravel()
    return Corpus(
        name,
        np.repeat(bags.indices, bags.data).astype(np.int32),
        sizes[sizes > 0],
        tuple(vectorizer.get_feature_names_out()),
    )


def newsgroups(raw_dir: str) -> list[str]:
    """The messages of 20 Newsgroups without headers, signatures and quotations, as scikit-learn
    strips them and in its order."""
    from sklearn.datasets import _twenty_newsgroups as strip

    if not raw_dir:
        return _downloaded_newsgroups()
    root = _folder(raw_dir, NEWSGROUPS, lambda place: (place / NEWSGROUPS_PARTS[0]).is_dir())
    texts = []
    for part in NEWSGROUPS_PARTS:
        files = sorted((root / part).glob("*/*")) if root else []
        if not files:
            raise BadInput(
                f"--raw_dir={raw_dir}: no 20 Newsgroups there; name a folder with {part}/GROUP/"
                "MESSAGE in it (20news-bydate.tar.gz of qwone.com/~jason/20Newsgroups), "
                "or leave --raw_dir out to have scikit-learn download it"
            )
        for file in files:
            text = strip.strip_newsgroup_header(_latin_1(file))
            texts.append(strip.strip_newsgroup_quoting(strip.strip_newsgroup_footer(text)))
    return texts


def _downloaded_newsgroups() -> list[str]:
    from sklearn.datasets import fetch_20newsgroups

    remove = ("headers", "footers", "quotes")
    try:
        with warnings.catch_warnings(action="ignore"):  # that it tries again
            parts = [
                fetch_20newsgroups(subset=part, shuffle=False, remove=remove, n_retries=1)
                for part in ("train", "test")
            ]
    except (OSError, http.client.HTTPException) as error:  # the network, or a damaged archive
        reason = " ".join(str(error).split())
        raise BadInput(
            f"--dataset=newsgroups: scikit-learn cannot fetch it ({reason}); use --raw_dir=FOLDER "
            f"with {NEWSGROUPS_PARTS[0]} and {NEWSGROUPS_PARTS[1]} in it, or --dataset=generated"
        ) from error
    return [text for part in parts for text in part.data]


def reuters(raw_dir: str) -> list[str]:
    """Titles and bodies of the Reuters stories of the ModApte split, in the order of the files."""
    root = raw_dir and _folder(raw_dir, REUTERS, lambda place: any(place.glob("*.sgm")))
    if not root:
        given = f"--raw_dir={raw_dir}: no Reuters-21578 there" if raw_dir else "--dataset=reuters"
        raise BadInput(
            f"{given}; use --raw_dir=FOLDER with reut2-000.sgm … reut2-021.sgm in it "
            "(reuters21578.tar.gz of kdd.ics.uci.edu/databases/reuters21578)"
        )
    files = sorted(root.glob("*.sgm"))
    return [story for file in files for story in stories(file.name, _latin_1(file))]


def stories(name: str, sgml: str) -> list[str]:
    """The stories of the ModApte split in one SGML file; BadInput names it where it breaks off."""
    if sgml.count("<REUTERS ") != sgml.count("</REUTERS>") or "<REUTERS " not in sgml:
        raise BadInput(f"{name}: holds no whole <REUTERS …> … </REUTERS>; restore the file")
    found = []
    for attributes, story in re.findall(r"<REUTERS ([^>]*)>(.*?)</REUTERS>", sgml, re.DOTALL):
        if 'TOPICS="YES"' in attributes and re.search(r'LEWISSPLIT="(TRAIN|TEST)"', attributes):
            parts = re.findall(r"<(TITLE|BODY)>(.*?)</\1>", story, re.DOTALL)
            # Control characters (&#3; ends a body) become blanks: they are no part of a word.
            found.append(html.unescape(" ".join(text for _, text in parts)))
    return found


READERS = {"newsgroups": newsgroups, "reuters": reuters}


def _folder(raw_dir: str, name: str, fits: Callable[[Path], bool]) -> Path | None:
    """raw_dir, or the folder of the published name in it."""
    return next((place for place in (Path(raw_dir), Path(raw_dir) / name) if fits(place)), None)


def _latin_1(path: Path) -> str:
    with atomic.readable(path):
        return path.read_text("latin-1")


def _cached(dataset: str, raw_dir: str, cache: Path, log: Log) -> Corpus:
    """The whole corpus from its folder in the cache, which is made where it is missing."""
    parameters = {
        "dataset": dataset,
        "raw_dir": str(Path(raw_dir).resolve()) if raw_dir else "",
        "word": WORD,
        "fewest_documents": FEWEST_DOCUMENTS,
        "largest_share": LARGEST_SHARE,
        "scikit-learn": version("scikit-learn"),
    }
    key = hashlib.sha256(json.dumps([FORMAT, parameters]).encode()).hexdigest()[:12]
    folder = cache / f"{dataset}-{key}"
    if not folder.exists():
        log(f"{dataset}: not tokenised yet; reading the originals")
        made = tokenised(dataset, READERS[dataset](raw_dir))
        log(f"{dataset}: {len(made.sizes)} documents, {len(made.words)} tokens; kept in {folder}")
        try:
            with atomic.publishing_folder(folder) as partial:
                write(partial, made, parameters)
        except OSError as error:
            raise BadInput(f"{cache}: cannot be written ({error.strerror})") from error
    return load(folder)


def write(folder: Path, made: Corpus, parameters: dict[str, Any]) -> None:
    """Write the corpus into `folder`; the manifest, with the others' checksums, comes last."""
    atomic.write_array(folder / WORDS, made.words)
    atomic.write_array(folder / SIZES, made.sizes)
    atomic.write_text(folder / VOCABULARY, "\n".join(made.vocabulary))
    files = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in (WORDS, SIZES, VOCABULARY)
    }
    manifest = {"format": FORMAT, "dataset": made.name, "parameters": parameters, "sha256": files}
    atomic.write_json(folder / MANIFEST, manifest)


def load(folder: Path) -> Corpus:
    """The corpus in `folder`; BadInput names what is missing or damaged."""
    again = f"remove the folder {folder} and run again"
    try:
        manifest = atomic.read_json(folder / MANIFEST)
        dataset, sums = manifest["dataset"], manifest["sha256"]
        files = {name: atomic.read_bytes(folder / name) for name in (WORDS, SIZES, VOCABULARY)}
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = error if isinstance(error, OSError) else f"{folder / MANIFEST}: {error!r}"
        raise BadInput(f"{folder}: cannot be read ({reason}); {again}") from error
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != sums.get(name):
            raise BadInput(f"{folder / name} is damaged: its sha256 is not the manifest's; {again}")
    words, sizes = (np.load(io.BytesIO(files[name])) for name in (WORDS, SIZES))
    return Corpus(dataset, words, sizes, tuple(files[VOCABULARY].decode().split("\n")))
