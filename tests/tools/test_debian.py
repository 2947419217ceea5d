"""Debian packages are read without installing them."""

import shutil
import subprocess

import pytest

from tools import debian
from tools.oci import Entry

CONTROL = "Package: app\nVersion: 1:2-3\nArchitecture: all\nMaintainer: A <a@example.com>\nDescription: an example\n"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    if not shutil.which("dpkg-deb"):
        pytest.skip("not installed: dpkg-deb (Debian: dpkg)")
    place = tmp_path_factory.mktemp("package")
    files = {"DEBIAN/control": CONTROL, "lib/app.so": "x", "usr/share/doc/app/copyright": "c"}
    files |= {"usr/share/doc/app/README": "r", "usr/share/man/man1/app.1": "m"}
    for name, text in files.items():
        (place / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "root" / name).write_text(text)
    (place / "root" / "lib" / "app.so").chmod(0o4755)
    (place / "root" / "usr" / "app.so.1").symlink_to("app.so")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", place / "root", place / "app_2.deb"], check=True)  # noqa: S603, S607
    return place / "app_2.deb"


def test_files_are_below_usr_without_documents_and_set_user_id_bits(package):
    files = debian.read_package(package)

    assert files["usr/lib/app.so"] == Entry(0o755, b"x")
    assert files["usr/app.so.1"].target == "app.so"
    assert files["usr/share/doc/app/copyright"].content == b"c"
    assert not {"lib", "lib/app.so", "usr/share/doc/app/README", "usr/share/man/man1/app.1"} & files.keys()


def test_scanners_find_the_version_of_the_package(package):
    assert b"Version: 1:2-3\n" in debian.read_package(package)["var/lib/dpkg/status.d/app"].content


def test_the_first_alternative_of_each_dependency_counts(monkeypatch):
    known = {
        "app": "Package: app\nVersion: 1\nPre-Depends: libc6 (>= 2.36)\nDepends: lib:any (>= 1), one | two, tool\n",
        "libc6": "Version: 2.36-9\nDescription: C\n library\n",
        "lib": "Version: 3\nDepends: libc6\n",
        "one": "Version: 4\n",
    }
    monkeypatch.setattr(debian, "_run", lambda *command: known[command[-1]].encode())

    assert debian.closure(["app"], without=["tool"]) == {"app": "1", "lib": "3", "libc6": "2.36-9", "one": "4"}
