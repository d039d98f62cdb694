"""``fsdp2lint config``: what may be in a configuration file."""

from __future__ import annotations

import sys

import click


@click.command("config", short_help="Describe the configuration keys.")
@click.argument("key", required=False, metavar="[KEY]")
@click.option("--schema", "as_schema", is_flag=True, help="Print the JSON Schema of the file.")
def command(key: str | None, as_schema: bool) -> None:
    """Describe the keys of `[tool.fsdp2lint]` in pyproject.toml, or of fsdp2lint.toml: all, or KEY."""
    from fsdp2lint.config.options import described, schema

    if as_schema:
        import msgspec

        text = msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode()
        sys.stdout.write(text + "\n")
        return
    every = list(described())
    if key is None:
        for name, kind, about in every:
            sys.stdout.write(f"{name}: {kind}\n    {about}\n")
        return
    wanted = key.replace("_", "-")
    for name, kind, about in every:
        if name == wanted:
            sys.stdout.write(f"{name}: {kind}\n    {about}\n")
            return
    from fsdp2lint.config.settings import unknown

    raise click.ClickException(unknown("key", key, [name for name, _, _ in every]))
