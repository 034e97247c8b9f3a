"""20 Newsgroups and Reuters-21578: exactly which words are read, and what the cache vouches for."""

import os
import shutil

import numpy as np
import pytest

from cbdybw.errors import BadInput
from cbdybw.learning.corpus import Corpus, generate
from data_prep import texts

MESSAGE = """From: somebody@somewhere.org
Subject: Secrets of headers

In article <1@x> another@somewhere.org writes:
> Quoted planets
Orbits of the Planets: planets2, my_moon and caf\xe9s; it's AN orbit
orbits!

--
Signature Planets
"""

STORIES = """<!DOCTYPE lewis SYSTEM "lewis.dtd">
<REUTERS TOPICS="YES" LEWISSPLIT="TRAIN" CGISPLIT="TRAINING-SET" OLDID="5" NEWID="1">
<DATE>26-FEB-1987</DATE><TOPICS><D>cocoa</D></TOPICS>
<TEXT>&#2;
<TITLE>COCOA &lt;CCX></TITLE>
<DATELINE>    SALVADOR, Feb 26 - </DATELINE><BODY>Cocoa prices rose &lt;by> 3.5 pct
&amp; fell\x03
 Reuter
&#3;</BODY></TEXT>
</REUTERS>
<REUTERS TOPICS="NO" LEWISSPLIT="TRAIN" OLDID="6" NEWID="2">
<TEXT><TITLE>WITHOUT TOPICS</TITLE><BODY>nothing</BODY></TEXT></REUTERS>
<REUTERS TOPICS="YES" LEWISSPLIT="NOT-USED" OLDID="7" NEWID="3">
<TEXT><TITLE>UNUSED</TITLE><BODY>nothing</BODY></TEXT></REUTERS>
<REUTERS TOPICS="YES" LEWISSPLIT="TEST" OLDID="8" NEWID="4">
<TEXT TYPE="BRIEF"><TITLE>SUGAR PRICES</TITLE></TEXT></REUTERS>
"""


def newsgroups_folder(root, messages):
    """The messages, half of them for training, in the published folders."""
    for n, message in enumerate(messages):
        part = texts.NEWSGROUPS_PARTS[n >= len(messages) // 2]
        folder = root / part / ("sci.space", "alt.atheism")[n % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(1000 + n)).write_bytes(message.encode("latin-1"))
    return root


def reuters_folder(root):
    root.mkdir()
    (root / "reut2-000.sgm").write_bytes(STORIES.encode("latin-1"))
    (root / "reut2-001.sgm").write_bytes(STORIES.replace("SUGAR", "COFFEE").encode("latin-1"))
    return root


def planets(n):
    """A message with a word that every one has, one in half of them, and a rare one."""
    often = "moon moon" if n % 2 else "comet"
    rare = ("nebula", "quasar")[n < 5] if n < 9 else ""  # in four and in five messages
    return f"From: x\n\nplanet {often} {rare}\n"


def kept(corpus):
    """The words of each document."""
    bags = np.split(corpus.words, np.cumsum(corpus.sizes)[:-1])
    return [[corpus.vocabulary[word] for word in bag] for bag in bags]


def quiet(line):
    """A log that nobody reads."""


@pytest.fixture
def raw(tmp_path):
    return newsgroups_folder(tmp_path / "raw", [planets(n) for n in range(20)])


# Which words are read


def test_a_message_is_its_body_without_quotations_and_signature(tmp_path):
    folder = newsgroups_folder(tmp_path / "raw", [MESSAGE, "Subject: Only a header\n\n", MESSAGE])
    read = texts.newsgroups(str(folder))
    body = "Orbits of the Planets: planets2, my_moon and caf\xe9s; it's AN orbit\norbits!"
    assert sorted(text.strip() for text in read) == ["", body, body]
    corpus = texts.tokenised("newsgroups", read, fewest=1, share=1.0)
    assert corpus.vocabulary == ("orbit", "orbits", "planets")
    assert kept(corpus) == [["orbit", "orbits", "orbits", "planets"]] * 2


def test_messages_come_in_the_order_of_parts_groups_and_names(tmp_path):
    messages = [f"x\n\nmessage {n}\n" for n in range(8)]
    read = texts.newsgroups(str(newsgroups_folder(tmp_path / "raw", messages)))
    assert [int(text.split()[-1]) for text in read] == [1, 3, 0, 2, 5, 7, 4, 6]


def test_stories_are_titles_and_bodies_of_the_modapte_split(tmp_path):
    read = texts.reuters(str(reuters_folder(tmp_path / "raw")))
    assert len(read) == 4
    assert read[0].split("\n")[0] == "COCOA <CCX> Cocoa prices rose <by> 3.5 pct"
    assert read[1::2] == ["SUGAR PRICES", "COFFEE PRICES"]
    corpus = texts.tokenised("reuters", read, fewest=1, share=1.0)
    first = ["ccx", "cocoa", "cocoa", "fell", "pct", "prices", "reuter", "rose"]
    assert kept(corpus) == [first, ["prices", "sugar"], first, ["coffee", "prices"]]
    assert corpus.words.dtype == np.int32


def test_rare_words_and_those_in_most_documents_are_left_out(raw, tmp_path):
    corpus = texts.corpus("newsgroups", raw, tmp_path / "cache", log=quiet)
    assert corpus.vocabulary == ("comet", "moon", "quasar")  # nebula: in four; planet: in all
    assert sorted(corpus.sizes.tolist()) == [1] * 7 + [2] * 11 + [3] * 2
    assert corpus.notice is None


def test_documents_without_words_are_left_out():
    corpus = texts.tokenised("x", ["alpha beta", "", "12 of it", "beta"], fewest=1, share=1.0)
    assert kept(corpus) == [["alpha", "beta"], ["beta"]]


# The cache


def test_the_second_use_needs_no_originals_and_gives_the_same(raw, tmp_path):
    lines = []
    first = texts.corpus("newsgroups", raw, tmp_path / "cache", log=lines.append)
    assert len(lines) == 2
    shutil.rmtree(raw)
    second = texts.corpus("newsgroups", raw, tmp_path / "cache", log=lines.append)
    assert len(lines) == 2
    assert (first.vocabulary, first.name) == (second.vocabulary, second.name)
    np.testing.assert_array_equal(first.words, second.words)
    np.testing.assert_array_equal(first.sizes, second.sizes)


def test_other_originals_have_another_place_in_the_cache(raw, tmp_path):
    cache = tmp_path / "cache"
    other = newsgroups_folder(tmp_path / "other", ["x\n\ncomet\n", "x\n\nmoon\n"] * 6)
    one = texts.corpus("newsgroups", raw, cache, log=quiet)
    two = texts.corpus("newsgroups", other, cache, log=quiet)
    assert (len(one.sizes), len(two.sizes)) == (20, 12)
    assert len(list(cache.iterdir())) == 2


DAMAGE = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "changed": lambda path: path.write_bytes(b"[" + path.read_bytes()[1:]),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["words.npy", "sizes.npy", "vocabulary.txt", "manifest.json"])
def test_a_damaged_cache_is_named(raw, tmp_path, name, how):
    cache = tmp_path / "cache"
    texts.corpus("newsgroups", raw, cache, log=quiet)
    (folder,) = cache.iterdir()
    DAMAGE[how](folder / name)
    if name == "manifest.json" and how == "cut short":
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])  # not its line's end alone
    with pytest.raises(BadInput, match=f"{folder}.*remove the folder") as refusal:
        texts.corpus("newsgroups", raw, cache, log=quiet)
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_cache_that_cannot_be_written_is_named(raw, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(BadInput, match="cache: cannot be written"):
        texts.corpus("newsgroups", raw, tmp_path / "cache", log=quiet)


# Fewer documents, and generated ones


def test_documents_are_drawn_by_the_seed_with_the_words_that_they_have(raw, tmp_path):
    whole = texts.corpus("newsgroups", raw, tmp_path / "cache", log=quiet)
    drawn = [whole.drawn(8, seed) for seed in (1, 1, 2)]
    assert kept(drawn[0]) == kept(drawn[1])
    assert kept(drawn[0]) != kept(drawn[2])
    assert set(drawn[0].vocabulary) == {word for bag in kept(drawn[0]) for word in bag}
    assert sorted(kept(whole.drawn(20, 1))) == sorted(kept(whole))
    asked = texts.corpus("newsgroups", raw, tmp_path / "cache", documents=8, seed=1, log=quiet)
    assert kept(asked) == kept(drawn[0])
    rare = Corpus("x", np.array([5, 7, 5], np.int32), np.array([1, 1, 1]), tuple("abcdefgh"))
    assert rare.drawn(1, 0).vocabulary in {("f",), ("h",)}


@pytest.mark.parametrize("documents", [-1, 21])
def test_more_documents_than_there_are_cannot_be_drawn(raw, tmp_path, documents):
    with pytest.raises(BadInput, match=f"documents={documents}: .* use 1 … 20"):
        texts.corpus("newsgroups", raw, tmp_path / "cache", documents=documents, log=quiet)


def test_a_generated_corpus_has_the_frequencies_of_its_topics():
    corpus, phi = generate(documents=4_000, length=50, vocabulary=30, topics=3, seed=4)
    np.testing.assert_allclose(phi.sum(1), 1)
    assert len(corpus.words) == corpus.sizes.sum()
    assert corpus.sizes.mean() == pytest.approx(50, abs=5 * np.sqrt(49 / 4_000))
    # Words are a mixture of the topics: no remainder outside of what these span.
    shares = np.bincount(corpus.words, minlength=30) / len(corpus.words)
    mixture, *_ = np.linalg.lstsq(phi.T, shares, rcond=None)
    np.testing.assert_allclose(mixture @ phi, shares, atol=0.004)
    np.testing.assert_allclose(mixture, 1 / 3, atol=0.05)
    assert "generated" in corpus.notice
    same, other = generate(seed=4)[0], generate(seed=5)[0]
    np.testing.assert_array_equal(texts.corpus("generated", seed=4).words, same.words)
    assert len(other.words) != len(same.words) or (other.words != same.words).any()


# What is refused


@pytest.mark.parametrize("dataset", texts.READERS)
def test_a_folder_without_the_files_is_refused_and_leaves_nothing(tmp_path, dataset):
    (tmp_path / "raw").mkdir()
    with pytest.raises(BadInput, match=r"--raw_dir=.*raw: no .* there; .* in it"):
        texts.corpus(dataset, tmp_path / "raw", tmp_path / "cache", log=quiet)
    assert os.listdir(tmp_path) == ["raw"]


def test_half_of_the_newsgroups_is_refused(raw):
    shutil.rmtree(raw / texts.NEWSGROUPS_PARTS[1])
    with pytest.raises(BadInput, match="name a folder with 20news-bydate-test/GROUP/MESSAGE"):
        texts.newsgroups(str(raw))


def test_reuters_without_a_folder_says_where_it_is_to_be_had():
    with pytest.raises(BadInput, match=r"--raw_dir=FOLDER with reut2-000\.sgm .*reuters21578"):
        texts.reuters("")


def test_newsgroups_that_no_network_gives_are_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(BadInput, match=r"cannot fetch it .* use --raw_dir=FOLDER") as refusal:
        texts.corpus("newsgroups", "", tmp_path / "cache", log=quiet)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("sgml", [STORIES[:-20], "", "no stories at all"])
def test_a_broken_off_file_of_stories_is_named(tmp_path, sgml):
    folder = reuters_folder(tmp_path / "raw")
    (folder / "reut2-001.sgm").write_text(sgml)
    with pytest.raises(BadInput, match=r"reut2-001\.sgm: holds no whole <REUTERS"):
        texts.reuters(str(folder))


def test_texts_without_words_are_refused():
    for few in (["12 34", "the and"], ["planet", "comet"]):
        with pytest.raises(BadInput, match="x: 2 texts have no vocabulary") as refusal:
            texts.tokenised("x", few, fewest=2)
        assert "\n" not in str(refusal.value)


def test_an_unknown_name_is_refused():
    with pytest.raises(BadInput, match=r"--dataset=wiki: .* use newsgroups, reuters, generated"):
        texts.corpus("wiki")
