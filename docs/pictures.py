"""Draw what users see: `check`, `migrate`, `verify` and an editor in a terminal, the report of `verify`, the site.

python docs/pictures.py              draws all into docs/pictures
python docs/pictures.py check site   draws these

`verify` and `report` start ranks, `editor` needs Neovim and tmux, `report` and `site` Chromium. What is drawn of a browser
carries the digest of the text that it shows: tests tell from it, and from the words in the other pictures, what is old.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
COMMANDS = {
    "check": "fsdp2lint check --select FSDP201 fixtures/projects/tour",
    "migrate": "fsdp2lint migrate fixtures/codemods/clip_grad_norm/method/before.py",
    "verify": "fsdp2lint verify before after --entry fit.py --steps 5",
}
LOST = ("        slope.step()\n", "")
"""What the program behind the picture of ``verify`` has lost in its migration: the steps of its schedule."""

COLUMNS = 104
WIDTH, HEIGHT = 8.4, 18.0
"""Of a character of 14 px in most fixed-width fonts; every piece of text is fitted to it."""
MARGIN, BAR = 16, 34
PAPER, INK = "#0d1117", "#e6edf3"
INKS = {
    31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#56d4dd", 37: INK, 90: "#8b949e",
}  # fmt: skip
BUTTONS = ("#ff5f56", "#ffbd2e", "#27c93f")

_LINK = re.compile(r"\x1b\]8;.*?(\x1b\\|\x07)")
_SGR = re.compile(r"\x1b\[([\d;]*)m")

Piece = tuple[str, str, bool]
"""Text, its ink, and whether it is bold."""


def terminal(name: str, report: Path | None = None) -> str:
    """What one of the commands sends to a terminal, behind what was typed; ``report`` is where `verify` writes its page."""
    command = COMMANDS[name]
    words = [*shlex.split(command)[1:], "--color", "always"]
    if name != "verify":
        return f"$ {command}\n{_run([*words, '--isolated'], ROOT)}"
    with tempfile.TemporaryDirectory() as folder:
        for side in ("before", "after"):
            shutil.copytree(ROOT / "fixtures/projects/vit_images" / side, Path(folder, side))
        script = Path(folder, "after", "fit.py")
        text = script.read_text("utf-8")
        assert LOST[0] in text
        script.write_text(text.replace(*LOST), "utf-8")
        more = ["--report", str(report)] if report else []
        said = _run([*words, "-q", *more], Path(folder)).replace(f"{folder}{os.sep}", "")
        if report:
            report.write_text(report.read_text("utf-8").replace(f"{folder}{os.sep}", ""), "utf-8")
    return f"$ {command}\n{_shortened(re.sub(r'  [(][0-9.]+ s[)]', '', said))}"


def _run(words: list[str], folder: Path) -> str:
    """What the program prints on a terminal as wide as the picture, without the targets of its links."""
    ours, its = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    with subprocess.Popen(
        [sys.executable, "-m", "fsdp2lint", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **size},
        stdout=its,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(its)
        said = b""
        with contextlib.suppress(OSError):  # Linux says so that the other end is closed
            while part := os.read(ours, 65536):
                said += part
    os.close(ours)
    assert process.returncode in (0, 1), said
    return _LINK.sub("", said.decode().replace("\r\n", "\n"))


def _shortened(text: str) -> str:
    """The report of `verify` without what is equal and without all but the first differences, and it says so."""
    kept: list[str] = []
    left_out = differences = 0
    for line in text.splitlines():
        plain = _SGR.sub("", line)
        is_first = not differences
        differences += plain.startswith("different: ")
        is_last = plain.startswith("Not equal")
        if re.search(r"\d  (equal|none to compare)", plain) or (differences > 3 and not is_last):
            left_out += 1
            continue
        if left_out and (is_last or (is_first and not plain)):
            kept.append(f"\x1b[90m({left_out} more lines are not in this picture)\x1b[0m")
            left_out = 0
        kept.append(line)
    return "\n".join(kept) + "\n"


def wrong_schedule() -> str:
    """What the picture of ``verify`` must say, in every run and on every machine."""
    return "the learning rate on rank 0 at step 2 is 0.2 in BEFORE and 0.1 in AFTER"


def rows(text: str) -> Iterator[list[Piece]]:
    """The lines in pieces of one look, broken where the terminal ends."""
    ink, bold = INK, False
    for line in text.rstrip("\n").split("\n"):
        row: list[Piece] = []
        column = 0
        for n, part in enumerate(_SGR.split(line)):
            if n % 2:
                ink, bold = _look(part, ink, bold)
                continue
            while part:
                taken = part[: COLUMNS - column]
                row.append((taken, ink, bold))
                part, column = part[len(taken) :], column + len(taken)
                if part:
                    yield row
                    row, column = [], 0
        yield row


def svg(text: str, what: str) -> str:
    """A terminal with a text; ``what`` is what a screen reader says of it."""
    every = list(rows(text))
    width = round(COLUMNS * WIDTH + 2 * MARGIN)
    height = round(len(every) * HEIGHT + BAR + MARGIN)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(what)} in a terminal">',
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
    ]
    for n, ink in enumerate(BUTTONS):
        lines.append(f'<circle cx="{MARGIN + 4 + 20 * n}" cy="17" r="6" fill="{ink}"/>')
    lines.append(
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" '
        'style="white-space: pre">'
    )
    for number, row in enumerate(every):
        lines += _drawn(row, BAR + (number + 1) * HEIGHT - 5)
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def _drawn(row: list[Piece], y: float) -> Iterator[str]:
    column = 0
    for text, ink, bold in row:
        bare = text.strip()
        if bare:
            x = MARGIN + (column + len(text) - len(text.lstrip())) * WIDTH
            weight = ' font-weight="bold"' if bold else ""
            yield (
                f'<text x="{x:.1f}" y="{y:.0f}" fill="{ink}"{weight} xml:space="preserve" '
                f'textLength="{len(bare) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs">'
                f"{escape(bare)}</text>"
            )
        column += len(text)


def _look(codes: str, ink: str, bold: bool) -> tuple[str, bool]:
    for code in map(int, codes.split(";") if codes else ["0"]):
        if code in (0, 39):
            ink = INK
        if code in (0, 1, 22):
            bold = code == 1
        ink = INKS.get(code, ink)
    return ink, bold


# -- the editor ------------------------------------------------------------------------------------------------------

LUA = """
vim.lsp.start_client({
  cmd = { "%s", "-m", "fsdp2lint", "server" },
  root_dir = vim.fn.getcwd(),
  on_init = function(client) vim.lsp.buf_attach_client(0, client.id) end,
})
vim.diagnostic.config({ virtual_text = false, signs = true, underline = true })
vim.o.number = true
vim.o.signcolumn = "yes"
vim.o.laststatus = 0
vim.o.swapfile = false
vim.o.ruler = false
"""


def editor() -> str:
    """A finding in Neovim, with its message open."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "fixtures/projects/tour", folder, dirs_exist_ok=True)
        init = Path(folder, "init.lua")
        init.write_text(LUA % sys.executable, "utf-8")
        tmux = ["tmux", "-L", f"pictures{os.getpid()}"]

        def keys(*sent: str) -> None:
            subprocess.run([*tmux, "send-keys", *sent], check=True)

        start = f"cd {shlex.quote(folder)} && PYTHONPATH={shlex.quote(str(ROOT))} nvim -u init.lua +38 train.py"
        size = ["-x", str(COLUMNS), "-y", "24"]
        subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", *size, start], check=True)
        try:
            for _ in range(120):
                time.sleep(1)
                keys("Escape", ":lua vim.diagnostic.open_float()", "Enter")
                time.sleep(1)
                shown = subprocess.run(
                    [*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True
                ).stdout
                if "was built before" in shown:
                    break
            else:
                raise RuntimeError(f"Neovim shows no finding:\n{shown}")
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)
    return shown


# -- a browser -------------------------------------------------------------------------------------------------------


def digest(text: str) -> str:
    """Of what decides how a page looks."""
    return hashlib.sha256(text.encode()).hexdigest()


def report_text() -> str:
    """What decides how the page of ``verify`` looks: the code that writes it."""
    page = ROOT / "fsdp2lint/prove/report/page"
    return "".join(path.read_text("utf-8") for path in sorted(page.rglob("*.py")))


def site_text() -> str:
    """What decides how the first page of the site looks."""
    return (ROOT / "docs/index.md").read_text("utf-8") + (ROOT / "mkdocs.yml").read_text("utf-8")


def photograph(page: Path, picture: Path, shows: str, size: str = "1200,900") -> None:
    """A picture of a page in a browser without a window, with the digest of what it shows."""
    found = next((b for b in ("chromium", "google-chrome") if shutil.which(b)), None)
    assert found, "this picture needs Chromium"
    subprocess.run(
        [found, "--headless", "--no-sandbox", "--hide-scrollbars", "--force-color-profile=srgb",
         f"--window-size={size}", f"--screenshot={picture}", page.as_uri()],
        check=True, capture_output=True, timeout=180,
    )  # fmt: skip
    raw = picture.read_bytes()
    text = b"tEXt" + b"shows\0" + digest(shows).encode()
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    header = 8 + 25  # the signature and the chunk IHDR come first
    picture.write_bytes(raw[:header] + chunk + raw[header:])


def shown_digest(picture: Path) -> str:
    """The digest that a picture carries."""
    found = re.search(rb"tEXtshows\0([0-9a-f]{64})", picture.read_bytes())
    return found[1].decode() if found else ""


def site() -> None:
    """The first page of the site, built anew."""
    subprocess.run([sys.executable, str(ROOT / "docs/generate.py")], check=True)
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", folder]
        subprocess.run(build, check=True, cwd=ROOT)
        photograph(Path(folder, "index.html"), PICTURES / "site.png", site_text())


def main(wanted: list[str]) -> None:
    """Draw what is wanted, or everything."""
    names = wanted or ["check", "migrate", "verify", "editor", "site"]
    for name in names:
        if name in COMMANDS:
            with tempfile.TemporaryDirectory() as folder:
                page = Path(folder, "report.html") if name == "verify" else None
                said = terminal(name, page)
                if page:
                    photograph(page, PICTURES / "report.png", report_text(), "1100,1400")
            (PICTURES / f"{name}.svg").write_text(svg(said, COMMANDS[name]), encoding="utf-8")
        elif name == "editor":
            drawn = svg(editor(), "A finding in Neovim")
            (PICTURES / "editor.svg").write_text(drawn, encoding="utf-8")
        elif name == "site":
            site()
        else:
            sys.exit(f"no picture {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
