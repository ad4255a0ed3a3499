"""Building the library: once, from these sources, and never a reason not to serve."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from weir_kernels.cpu import build, library, trust


@pytest.fixture(autouse=True)
def nothing_loaded() -> Iterator[None]:
    """The library is loaded once for a process; these tests decide what is found."""
    library.load_library.cache_clear()
    yield
    library.load_library.cache_clear()


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes "built" to its -o file and counts its calls; -DFAIL in the command makes it fail."""
    compiler, calls = tmp_path / "fake-cxx", tmp_path / "calls"
    compiler.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n[ -n "$FAIL" ] && case "$*" in *$FAIL*) exit 1;; esac\n'
        'while [ "$1" != -o ]; do shift; done\necho built > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return calls


def test_a_library_is_built_once(fake_compiler: Path, tmp_path: Path) -> None:
    first = build.build(tmp_path / "cache")
    assert first.read_text() == "built\n"
    assert first.name == build.library_name()
    calls = fake_compiler.read_text()
    assert build.build(tmp_path / "cache") == first
    assert fake_compiler.read_text() == calls
    recorded = first.with_suffix(".sha256")
    assert {path.name for path in first.parent.iterdir()} == {first.name, recorded.name, "build.lock"}
    assert recorded.read_text() == hashlib.sha256(b"built\n").hexdigest() + "\n"


def test_every_instruction_set_is_compiled_with_its_own_flags(fake_compiler: Path, tmp_path: Path) -> None:
    build.build(tmp_path / "cache")
    calls = fake_compiler.read_text().splitlines()
    (bf16,) = [call for call in calls if "isa_avx512_bf16.cpp" in call]
    (avx2,) = [call for call in calls if "isa_avx2.cpp" in call]
    (linked,) = [call for call in calls if "library.cpp" in call]
    assert "-mavx512bf16" in bf16
    assert "-mavx512" not in avx2
    assert "-m" not in {flag[:2] for flag in linked.split()}
    assert all("-march" not in call for call in calls)


def test_a_compiler_that_does_not_know_an_instruction_set_builds_the_others(
    fake_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "avx512bf16")
    build.build(tmp_path / "cache")
    (linked,) = [call for call in fake_compiler.read_text().splitlines() if "library.cpp" in call]
    assert "-DWEIR_HAVE_AVX512 " in linked
    assert "-DWEIR_HAVE_AVX512_BF16" not in linked


def test_a_failed_build_leaves_nothing_and_says_what_failed(
    fake_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "library.cpp")
    with pytest.raises(build.BuildError, match="fake-cxx failed"):
        build.build(tmp_path / "cache")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"build.lock"}


def test_no_compiler_is_one_warning_and_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("WEIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_PREBUILT", tmp_path / "prebuilt")
    with caplog.at_level(logging.WARNING):
        assert library.available() is None
        assert library.usable_isas() == ()
    (record,) = caplog.records
    assert "no C++ compiler" in record.getMessage()


def test_a_user_without_a_home_gets_the_torch_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("WEIR_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(build, "_PREBUILT", tmp_path)
    assert library.available() is None


def test_a_library_that_does_not_load_is_one_warning_and_no_kernels(
    fake_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WEIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_PREBUILT", tmp_path / "prebuilt")
    with caplog.at_level(logging.WARNING):
        assert library.available() is None
    assert len(caplog.records) == 1


def test_a_prebuilt_library_of_these_sources_is_used_and_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, prebuilt = tmp_path / "cache", tmp_path / "prebuilt"
    monkeypatch.setenv("WEIR_CACHE_DIR", str(cache))
    monkeypatch.setattr(build, "_PREBUILT", prebuilt)
    for folder in (cache, prebuilt):
        folder.mkdir(mode=0o700)
        (folder / "libweir_cpu-x86_64-0000000000000000.so").touch()
        compiled(folder, folder.name)
    assert loaded() == "prebuilt"
    (prebuilt / build.library_name()).unlink()
    assert loaded() == "cache"


def compiled(folder: Path, content: str) -> Path:
    """A library as a build would have left it."""
    library = folder / build.library_name()
    fresh = folder / "fresh.so"
    fresh.write_text(content)
    fresh.chmod(0o644)
    trust.record(fresh, library)
    return fresh.replace(library)


def loaded() -> str:
    """What would be loaded."""
    with build.library_file() as path:
        return Path(path).read_text()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, with nothing in it and nothing prebuilt."""
    folder = tmp_path / "shared" / "cache"
    monkeypatch.setenv("WEIR_CACHE_DIR", str(folder))
    monkeypatch.setattr(build, "_PREBUILT", tmp_path / "prebuilt")
    return folder


Disown = Callable[[Path], None]


@pytest.fixture
def disown(monkeypatch: pytest.MonkeyPatch) -> Disown:
    """Let a path belong to another user, who is not root."""

    def change(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 12345, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)

    return change


def test_the_cache_is_this_users_alone(fake_compiler: Path, cache: Path) -> None:
    assert loaded() == "built\n"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert (cache / build.library_name()).stat().st_mode & 0o022 == 0


def test_a_cache_of_ones_own_that_others_could_write_into_is_closed(fake_compiler: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert loaded() == "built\n"
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_library_of_another_user_is_not_loaded(fake_compiler: Path, cache: Path, disown: Disown) -> None:
    cache.mkdir(parents=True, mode=0o700)
    disown(compiled(cache, "not ours"))
    with pytest.raises(build.BuildError, match="belongs to user"), build.library_file():
        pass
    assert library.available() is None


def test_a_library_that_others_can_write_is_not_loaded(fake_compiler: Path, cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    compiled(cache, "changed since").chmod(0o666)
    with pytest.raises(build.BuildError, match="mode 0666"), build.library_file():
        pass


def test_a_link_in_the_place_of_a_library_is_not_followed(fake_compiler: Path, cache: Path, tmp_path: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours")
    (cache / build.library_name()).symlink_to(elsewhere)
    with pytest.raises(build.BuildError, match="is no file"), build.library_file():
        pass


def test_a_folder_of_another_user_is_not_used(fake_compiler: Path, cache: Path, disown: Disown) -> None:
    cache.mkdir(parents=True, mode=0o755)
    compiled(cache, "not ours")
    disown(cache)
    with pytest.raises(build.BuildError, match=r"it belongs to user .* set WEIR_CACHE_DIR"), build.library_file():
        pass


def test_a_library_that_is_not_what_was_compiled_is_compiled_again(fake_compiler: Path, cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    compiled(cache, "whole").write_text("cut")
    assert loaded() == "built\n"
    (cache / build.library_name()).with_suffix(".sha256").unlink()
    (cache / build.library_name()).write_text("of an older build")
    assert loaded() == "built\n"


def test_the_file_that_was_looked_at_is_loaded_even_if_its_name_changes_hands(fake_compiler: Path, cache: Path) -> None:
    with build.library_file() as path:
        other = cache / "other"
        other.write_text("not ours")
        other.replace(cache / build.library_name())
        assert Path(path).read_text() == "built\n"


def test_the_name_changes_with_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.library_name()
    for source in build._SOURCES.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build, "_SOURCES", tmp_path)
    assert build.library_name() == before
    with (tmp_path / "gemm.h").open("a") as file:
        file.write("\n")
    assert build.library_name() != before


def test_the_command_line_builds_into_a_folder(fake_compiler: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weir_kernels.cpu.build", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).read_text() == "built\n"
    assert done.stderr == ""
