"""server.sh and client.sh on machines of their own: the kernel's NFS server and two clients.

Each guest gets a root folder in its memory, with the programs of this machine and an /etc of its
own: the scripts change that as they would change a machine's, and nothing here.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nfs_setup.findings import OK
from nfs_setup.mounts import RECOMMENDED
from tests.cluster.machine import install
from tests.cluster.uml import guests
from tests.cluster.wire import NET, Wire

ROOT = Path(__file__).parents[2]
NEW_ROOT = "/mnt/root"
SERVER = f"{NET}.2"
CLIENTS = f"{NET}.0/24"
SHARED, MOUNTED = "/srv/data/runs", "/mnt/runs"
JOIN = ("client.sh", f"{SERVER}:{SHARED}", MOUNTED)
PORT = 2222

# Debian's own files in /etc, an fstab that somebody has written, and the server's programs.
_MAKE_ROOT = """\
set -e
mkdir {new}
mount -t tmpfs root {new}
cd {new}
mkdir -p dev etc mnt proc run srv tmp usr var/lib/nfs .{root}
ln -s usr/bin usr/lib usr/lib64 usr/sbin .
for shared in dev proc run usr; do mount --rbind /$shared $shared; done
mount --bind {root} {new}{root}
mkdir etc/alternatives
cp -a /etc/alternatives/awk etc/alternatives
cp -a /etc/group /etc/ld.so.* /etc/netconfig /etc/nsswitch.conf etc
cp -a /etc/passwd /etc/protocols /etc/services etc
cp -r {package} opt
cp opt/usr/share/nfs-kernel-server/conffiles/etc.exports etc/exports
printf '# of the machine itself\\n/dev/root / hostfs ro 0 0\\n\\n' > etc/fstab
"""
_STATE = """\
find etc srv mnt -printf '%p %m %l\\n' | sort
cat etc/fstab etc/exports
cut -d ' ' -f 2,3 /proc/mounts | sort
ps -eo args | grep -E '^(rpc|nfsdcld)' || echo no daemons
"""


class Machine:
    """A guest whose scripts and commands see the new root."""

    def __init__(self, guest):
        self.guest = guest

    def sh(self, line):
        """What a shell command came to, in the new root."""
        path = f"export PATH=/opt/usr/sbin:$PATH; cd /; {line}"
        return self.guest.run(["chroot", NEW_ROOT, "sh", "-c", path], timeout=120)

    def attempt(self, name, *words):
        """What a script came to."""
        return self.sh(shlex.join(["bash", f"{ROOT}/nfs_setup/{name}", *words]))

    def script(self, name, *words):
        """The lines that a script prints, which must end well."""
        done = self.attempt(name, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def state(self):
        """What there is: files with modes, tables, mounts, daemons."""
        return self.sh(_STATE).stdout.splitlines()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Debian's nfs-kernel-server, unpacked: installed here it would start a server."""
    install(("sqlite3",), ("sqlite3",))  # whose library nfsdcld needs
    folder = tmp_path_factory.mktemp("package")
    download = ["apt-get", "-qq", "download", "nfs-kernel-server"]
    if subprocess.run(download, cwd=folder, capture_output=True, timeout=120).returncode:
        subprocess.run(["apt-get", "-qq", "update"], capture_output=True, check=True, timeout=300)
        subprocess.run(download, cwd=folder, capture_output=True, check=True, timeout=120)
    (file,) = folder.glob("*.deb")
    subprocess.run(["dpkg", "-x", file, folder / "root"], check=True, timeout=60)
    return folder / "root"


@pytest.fixture(scope="module")
def machines(package, tmp_path_factory):
    """A server and two clients, as they are after installation."""
    folder = tmp_path_factory.mktemp("guests")
    (nfsd,) = Path("/usr/lib/uml/modules").rglob("nfsd.ko")
    with Wire(ports=3) as wire, guests(wire, 3, folder) as booted:
        make = _MAKE_ROOT.format(new=NEW_ROOT, root=shlex.quote(str(ROOT)), package=package)
        for guest in booted:
            done = guest.run(["sh", "-c", make], timeout=120)
            assert done.returncode == 0, done.stderr
        done = booted[0].run(["busybox", "insmod", nfsd], timeout=60)
        assert done.returncode == 0, done.stderr
        yield [Machine(guest) for guest in booted]


def test_a_shared_folder_is_set_up_tried_and_taken_back(machines, figures):
    server, one, two = machines
    before = [machine.state() for machine in machines]
    share, join = ("server.sh", SHARED, CLIENTS), JOIN
    for machine, words in ((server, share), (one, join)):
        promised = machine.script(*words, "--dry-run")
        *done, last = machine.script(*words)
        assert done == promised
        assert machine.script(*words) == [last]  # the second call has nothing to do
    two.script(*join)
    assert server.sh("cat /etc/exports.d/cbdybw.exports").stdout.splitlines()[1:] == [
        f"{SHARED} {CLIENTS}(rw,sync,no_subtree_check,no_root_squash)"
    ]
    assert one.sh("cat /etc/fstab").stdout.splitlines()[-1] == (
        f"{SERVER}:{SHARED} {MOUNTED} nfs {RECOMMENDED},_netdev 0 0"
    )
    assert one.sh(f"umount {MOUNTED} && mount {MOUNTED}").returncode == 0  # as at a boot

    assert one.sh(f"echo hello > {MOUNTED}/file").returncode == 0
    for machine, folder in ((two, MOUNTED), (server, SHARED)):
        assert machine.sh(f"cat {folder}/file").stdout == "hello\n"
    assert two.sh(f"rm {MOUNTED}/file").returncode == 0
    _tried(one, two, figures)

    two.script(*join, "--undo")
    for machine, words in ((one, join), (server, share)):
        promised = machine.script(*words, "--undo", "--dry-run")
        *done, last = machine.script(*words, "--undo")
        assert done == promised
        assert machine.script(*words, "--undo") == [last]
    assert [machine.state() for machine in machines] == before


def _tried(one, two, figures):
    """The doctor on one client, with the other as its peer, finds nothing that does harm."""
    elsewhere = [sys.executable, ROOT / "tests/cluster/programs/elsewhere.py"]
    serving = two.guest.start([*elsewhere, "serve", PORT])
    folder = NEW_ROOT + MOUNTED
    done = one.guest.python(
        *("-m", "nfs_setup.doctor", folder, "--json", f"--peers={two.guest.address}"),
        f"--launch={shlex.join(map(str, elsewhere))} {PORT} {{host}}",
        timeout=120,
    )
    serving.kill()
    assert done.stderr == ""
    report = json.loads(done.stdout)
    findings = {finding["check"]: finding for finding in report["findings"]}
    speed = {"fsync", "write", "read"}  # of this machine, whatever it is doing now
    bad = [f for name, f in findings.items() if f["verdict"] != OK and name not in speed]
    assert [f for f in bad if f["check"] != "space"] == []  # a guest's memory is small
    mount = f"NFS 4.2 of {SERVER}:{SHARED}, with the recommended options"
    peer = two.guest.address
    assert findings["mount"]["says"] == findings[f"mount {peer}"]["says"] == mount
    assert findings[f"peer {peer}"]["says"] == "sees the same folder"
    assert one.sh(f"ls -A {MOUNTED}").stdout == ""
    figures("doctor on the kernel's NFS server, two clients", f"{report['seconds']:.1f} s")
    for check in ("new file", "rewritten", "grown", "deleted"):
        seconds = findings[check]["figures"]["seconds"][peer]
        figures(f"… {check}: seen by the other client after", f"{seconds:.2f} s")


@pytest.fixture(scope="module")
def server(machines):
    """The server, which shares a folder."""
    machines[0].script("server.sh", SHARED, CLIENTS)
    yield machines[0]
    machines[0].script("server.sh", SHARED, CLIENTS, "--undo")


@pytest.fixture
def client(machines, server):
    """A client that has mounted nothing when it begins, and when it ends."""
    before = machines[1].state()
    yield machines[1]
    assert machines[1].state() == before


def test_the_server_runs_as_long_as_it_shares_anything(server):
    server.script("server.sh", "/srv/second", CLIENTS)
    lines = server.script("server.sh", SHARED, CLIENTS, "--undo", "--dry-run")
    assert "+ exportfs -r" in lines
    assert "+ rpc.nfsd 0" not in lines
    lines = server.script("server.sh", "/srv/second", CLIENTS, "--undo")
    assert lines[-3:-1] == ["+ exportfs -r", "+ rmdir --ignore-fail-on-non-empty /srv/second"]
    assert "+ rpc.nfsd 0" in server.script("server.sh", SHARED, CLIENTS, "--undo", "--dry-run")


def test_root_of_a_client_may_be_made_nobody_later(server, client):
    client.script(*JOIN)
    assert client.sh(f"touch {MOUNTED}/a && rm {MOUNTED}/a").returncode == 0
    assert server.script("server.sh", SHARED, CLIENTS, "--root-squash")[-2] == "+ exportfs -r"
    refused = client.sh(f"touch {MOUNTED}/b")
    assert (refused.returncode, "Permission denied" in refused.stderr) == (1, True)
    client.script(*JOIN, "--undo")
    assert server.script("server.sh", SHARED, CLIENTS)[-2] == "+ exportfs -r"


def test_where_systemd_runs_it_starts_the_server_and_knows_the_mount(machines):
    _, _, idle = machines
    assert idle.sh("mkdir -p /run/systemd/system").returncode == 0
    share = idle.script("server.sh", SHARED, CLIENTS, "--dry-run")
    assert share[-2:] == ["+ systemctl enable --now nfs-server", "+ exportfs -r"]
    assert idle.script(*JOIN, "--dry-run")[-1] == "+ systemctl daemon-reload"
    assert idle.sh("rmdir /run/systemd/system").returncode == 0


def test_what_cannot_be_mounted_leaves_nothing(client):
    done = client.attempt("client.sh", f"{SERVER}:/srv/other", MOUNTED)
    assert done.returncode == 1
    assert f"{SERVER}:/srv/other: cannot be mounted; look at the server" in done.stderr


def test_a_mount_with_other_options_is_mounted_anew_and_another_one_left_alone(client):
    client.sh(f"mkdir {MOUNTED} && mount -t nfs -o soft {SERVER}:{SHARED} {MOUNTED}")
    assert f"+ umount {MOUNTED}" in client.script(*JOIN)
    options = client.sh(f"findmnt -n -o OPTIONS {MOUNTED}").stdout
    assert ",hard," in options
    assert "lookupcache=pos" in options
    client.script(*JOIN, "--undo")
    assert client.sh(f"mount -t tmpfs other {MOUNTED}").returncode == 0  # it was there before
    refused = client.attempt(*JOIN)
    assert refused.returncode == 2
    assert f"MOUNTPOINT={MOUNTED}: other is mounted there" in refused.stderr
    client.sh(f"umount {MOUNTED}; rmdir {MOUNTED}")
