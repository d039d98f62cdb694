"""What ``fsdp2lint migrate`` makes of the settings files of public repositories.

python benchmarks/settings/settings.py --checkouts DIR

``DIR/OWNER__NAME``, ``DIR/OWNER+NAME/repo`` or ``DIR/OWNER/NAME`` is a git clone of each repository that ``files.jsonl`` names
with a commit. Each file is migrated in memory, and these laws are asked of it: nothing crashes, all comments and all keys that
version 2 keeps are the same bytes, a second run changes nothing, and accelerate's own parser accepts what comes out.
Beside it stands what ``accelerate to-fsdp2`` makes of the same files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fsdp2lint.frameworks.asked import Asked
from fsdp2lint.frameworks.text import SettingsText
from fsdp2lint.frameworks.version2 import settings_changes
from fsdp2lint.source.reading import decode
from fsdp2lint.source.source import Unreadable

FILES = Path(__file__).parent / "files.jsonl"


def clones(checkouts: Path) -> Iterator[tuple[str, Path]]:
    """The repositories that are there, by their names."""
    for folder in sorted(checkouts.iterdir()):
        for mark in ("__", "+"):
            owner, found, name = folder.name.partition(mark)
            if found:
                yield f"{owner}/{name}", folder / "repo" if (folder / "repo").is_dir() else folder


def git(clone: Path, *arguments: str) -> str:
    """What git prints; nothing where it fails."""
    done = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def asked(text: str, path: str) -> Asked | None:
    """How a file asks for FSDP."""
    source = decode(text.encode(), path)
    try:
        return source.asked if isinstance(source, SettingsText) else None
    except Unreadable:
        return None


def migrated(text: str, path: str) -> tuple[str, Counter[str]]:
    """The text with the changes made, and what became of its keys."""
    made, at, fates = "", 0, Counter[str]()
    for change in settings_changes(decode(text.encode(), path)):
        fates[change.fate] += 1
        if change.fate in ("changed", "dropped"):
            made += text[at : change.start] + change.text
            at = change.end
    return made + text[at:], fates


def broken(before: str, after: str, path: str) -> Iterator[str]:
    """The laws that do not hold for a file."""
    if comments(after) != comments(before):
        yield "comments"
    changed = settings_changes(decode(before.encode(), path))
    touched = {change.what for change in changed}
    lost = [line for line in before.splitlines() if line not in after and not _is_of(line, touched)]
    if lost:
        yield f"a line is not the same: {lost[0].strip()}"
    if migrated(after, path)[0] != after:
        yield "a second run changes more"
    found = asked(after, path)
    if found is None:
        yield "it no longer asks for FSDP"
    elif found.framework == "accelerate":
        problem = refused(after, path)
        if problem:
            yield f"accelerate refuses it: {problem}"


def comments(text: str) -> list[str]:
    """All comments, in their order."""
    return [line[line.index("#") :].strip() for line in text.splitlines() if " #" in f" {line}"]


def _is_of(line: str, names: set[str]) -> bool:
    return any(name in line for name in names)


def refused(text: str, path: str) -> str:
    """Why accelerate's own parser does not accept a file."""
    from accelerate.commands.config.config_args import load_config_from_file

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, Path(path).name)
        file.write_text(text)
        try:
            load_config_from_file(str(file))
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def lost_by_accelerate(before: str, found: Asked) -> Iterator[str]:
    """What a file of version 1 says and ``accelerate to-fsdp2`` does not keep."""
    import yaml
    from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2

    converted = convert_config_to_fsdp2(yaml.safe_load(before))
    if not converted.get("fsdp_config"):
        yield "everything: it stays version 1"
        return
    after = yaml.dump(converted)
    if comments(before) != comments(after):
        yield "comments"
    keys = [list(yaml.safe_load(text)["fsdp_config"] or ()) for text in (before, after)]
    if [key for key in keys[0] if key in keys[1]] != [key for key in keys[1] if key in keys[0]]:
        yield "the order of the keys"
    if found.option("state_dict_type") is None:
        yield "the type of state dicts that version 1 means"
    strategy = next((name for _, name in found.strategies), "")
    if strategy == "NO_SHARD":
        yield "NO_SHARD"
    if strategy.startswith("HYBRID") and found.top.value("num_machines") != 1:
        yield "hybrid sharding"
    reshards = converted["fsdp_config"].get("fsdp_reshard_after_forward")
    if reshards is not None and not isinstance(reshards, bool):
        yield "the strategy, which is a number that version 2 refuses"


def main() -> int:
    """Report what came of all files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkouts", type=Path, required=True)
    options = parser.parse_args()
    there = dict(clones(options.checkouts))
    counts, frameworks, problems = Counter[str](), Counter[str](), 0
    theirs = Counter[str]()
    for line in FILES.read_text().splitlines():
        one = json.loads(line)
        clone = there.get(one["repository"])
        before = git(clone, "show", f"{one['commit']}:{one['path']}") if clone else ""
        if not before:
            counts["no clone"] += 1
            continue
        found = asked(before, one["path"])
        if found is None:  # settings for torch_xla
            counts["asks for no FSDP of PyTorch"] += 1
            continue
        after, fates = migrated(before, one["path"])
        frameworks[f"{found.framework}, version {found.version}"] += 1
        counts["manual" if fates["manual"] else "migrated" if after != before else "unchanged"] += 1
        if found.framework == "accelerate" and found.version == 1:
            theirs.update(("files of version 1", *lost_by_accelerate(before, found)))
        original = refused(before, one["path"]) if found.framework == "accelerate" else ""
        for problem in broken(before, after, one["path"]):
            if original and problem == f"accelerate refuses it: {original}":
                counts["refused before, too"] += 1
                continue
            problems += 1
            print(f"{one['repository']} {one['path']}: {problem}")
    print(f"{sum(frameworks.values())} files:", dict(frameworks))
    print(dict(counts), f"{problems} broken laws")
    print("accelerate to-fsdp2 loses of", dict(theirs))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
