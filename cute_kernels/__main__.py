"""Command line: python -m cute_kernels doctor | demo | bench | peers | validate | evidence | execute | readme."""

from __future__ import annotations

import argparse
import sys


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cute_kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what this machine can run; non-zero when something needs mending")
    commands.add_parser("demo", help="the fused kernels on Qwen-2.5 shapes against PyTorch")
    bench = commands.add_parser("bench", help="time every finished kernel beside PyTorch")
    bench.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    peers = commands.add_parser("peers", help="time swiglu beside quack, where that is installed")
    for command in (bench, peers):
        command.add_argument("--models", default=None, help="comma-separated, such as 0.5B,7B; default all")
        command.add_argument("--M", dest="rows", default=None, help="comma-separated token counts")
    peers.add_argument("--seconds", type=float, default=None, help="begin no new shape after so long")
    validate = commands.add_parser("validate", help="numerics of every configuration against fp32")
    validate.add_argument("--kernel", default=None, help="one kernel only")
    for command in (bench, peers, validate):
        command.add_argument("--record", action="store_true", help="keep the result under notebooks/measured")
    commands.add_parser("evidence", help="is what was measured about today's code? non-zero when not")
    execute = commands.add_parser("execute", help="run notebooks on this GPU and keep their outputs")
    execute.add_argument("notebooks", nargs="*")
    readme = commands.add_parser("readme", help="write the generated parts of README.md from the records")
    readme.add_argument("--check", action="store_true", help="only say whether they are up to date")
    args = parser.parse_args(argv)
    _check(parser, args)

    def given(*names: str) -> dict:
        return {name: value for name in names if (value := getattr(args, name))}

    if args.command == "doctor":
        from .doctor import main as run

        return run()
    if args.command == "demo":
        from .demo import main as run

        return run()
    if args.command == "bench":
        from .benchmark import main as run

        return run(record=args.record, compiled=not args.no_compile, **given("models", "rows"))
    if args.command == "peers":
        from .peers import main as run

        return run(record=args.record, **given("models", "rows", "seconds"))
    if args.command == "validate":
        from .validate import main as run

        return run(record=args.record, only=args.kernel)
    if args.command == "evidence":
        from .evidence import main as run

        return run()
    if args.command == "execute":
        from .execute import main as run

        return run(args.notebooks)
    from .readme import main as run

    return run(check=args.check)


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends with one line for names that do not exist, a record of half a benchmark, or a GPU that is no Hopper."""
    if args.command in ("bench", "peers"):
        from .models import QWEN25

        models, rows = (given.split(",") if given else [] for given in (args.models, args.rows))
        if unknown := [name for name in models if name not in QWEN25]:
            parser.error(f"--models: {', '.join(map(repr, unknown))} unknown, allowed: {', '.join(QWEN25)}")
        if wrong := [m for m in rows if not (m.isdecimal() and int(m))]:
            parser.error(f"--M: {', '.join(map(repr, wrong))}, must be positive whole numbers")
        if args.record and (args.models or args.rows or getattr(args, "no_compile", False)):
            parser.error("--record keeps the whole benchmark: leave --models, --M and --no-compile away")
    if args.command == "validate" and args.kernel:
        from .registry import get

        try:
            get(args.kernel)
        except ValueError as why:
            parser.error(f"--kernel: {why}")
    if args.command in ("bench", "peers", "validate", "execute"):
        import torch

        from .lab import HAS_GPU

        if torch.cuda.is_available() and not HAS_GPU:
            parser.error(f"{args.command} needs a Hopper GPU, this is {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    sys.exit(main())
