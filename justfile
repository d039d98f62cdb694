# List the commands.
default:
    @just --list

# The quick tests, or what you name: `just test --rule direct-forward-call`.
test *words:
    pytest -n 2 {{words}}

# The tests that start ranks.
ranks:
    pytest -n 2 -m ranks

# Every stop, 10,000 inputs each for check and for writes, every bit, 5,000 messages: hours.
faults:
    python -m tests.faults.stops
    python -m tests.faults.fuzz
    python -m tests.faults.bits
    python -m tests.faults.messages

# The tests that start ranks under another PyTorch: `just torch 2.7.1 --sample`. 5 GB on disk.
torch *words:
    python benchmarks/releases/releases.py {{words}}

# Style and types.
lint:
    ruff check
    ruff format --check
    mypy

# Rewrite expected outputs; read the diff afterwards.
bless *words:
    pytest --bless {{words}}

# The docs site, into build/site.
docs:
    python docs/generate.py
    mkdocs build --strict

# The pictures of the README and the site; name some of them: `just pictures check migrate`.
pictures *words:
    python docs/pictures.py {{words}}

# All that CI runs.
ci:
    bash .ci/run
