"""The Containerfile builds from files that exist, with locked libraries, an image that needs no root by itself."""

import json
import re
import shlex
import tomllib

from tests.console_runner import ROOT
from tools.image import read_containerfile

ARGUMENTS, (BUILD, IMAGE) = read_containerfile()


def locked(name):
    """Return the versions of a lock file by library."""
    text = (ROOT / "lock" / name).read_text("utf-8")
    return dict(re.findall(r"^([\w.-]+)==([\w.+]+)", text, re.MULTILINE))


def test_both_stages_begin_with_the_same_public_image_which_can_be_replaced():
    assert ARGUMENTS.keys() == {"PYTHON_IMAGE"}
    assert re.fullmatch(r"docker\.io/library/python:3\.13-slim@sha256:[0-9a-f]{64}", ARGUMENTS["PYTHON_IMAGE"])
    assert {BUILD.image, IMAGE.image} == {"${PYTHON_IMAGE}"}


def test_every_file_that_is_copied_exists_and_is_sent_to_the_builder():
    sources = [word.rstrip("/") for line in BUILD.of("COPY") for word in shlex.split(line)[:-1]]
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()

    assert all((ROOT / source).exists() for source in sources)
    assert {line[1:] for line in ignored if line.startswith("!")} == set(sources)
    assert "*" in ignored


def test_the_image_has_the_locked_libraries_and_no_user_with_privileges():
    installs = [line for line in BUILD.of("RUN") if " install " in line]

    assert all("--require-hashes" in line or "--no-index" in line for line in installs)
    assert IMAGE.of("USER") == ["65532:65532"]
    assert [json.loads(line) for line in IMAGE.of("ENTRYPOINT")] == [["alignup"]]


def test_the_lock_file_of_the_image_has_what_its_programs_need_in_the_tested_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = {re.split("[<>=]", each)[0] for each in (*project["dependencies"], *extras["agent"], *extras["cluster"])}
    runtime = locked("runtime.txt")

    assert needed <= runtime.keys()
    assert runtime.items() <= locked("dev.txt").items()
    assert "pytest" not in runtime


def test_make_run_installs_the_agent_and_what_generates_its_messages_and_no_more():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["agent"]}
    needed |= set(project["build-system"]["requires"])
    run = locked("run.txt")

    assert {re.split("[<>=]", each)[0] for each in needed} <= run.keys()
    assert run.items() <= locked("dev.txt").items()
    assert len(run) < 40
