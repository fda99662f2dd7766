"""The command line: `python -m norm_geometry measure --help`."""

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m norm_geometry", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure the angles before and after every norm of a model")
    measuring.add_argument("--model", required=True, help="a known name, a Hub id (organisation/model), a local folder")
    measuring.add_argument("--revision", help="branch, tag or commit of a model on the Hub")
    measuring.add_argument("--tokens", required=True, type=_token_count, help="how many tokens, or 'all'")
    measuring.add_argument("--online", action="store_true", help="read wikimedia/wikipedia, not the packaged text")
    measuring.add_argument("--length", type=int, default=512, help="tokens in a sequence (default: %(default)s)")
    measuring.add_argument("--batch-size", type=int, default=8, help="sequences in a batch (default: %(default)s)")
    measuring.add_argument("--seed", type=int, default=0, help="of the random directions (default: %(default)s)")
    measuring.add_argument(
        "--out", required=True, help="the .csv file to write, with its provenance in a .json beside it"
    )
    options = vars(parser.parse_args(arguments))
    options.pop("command")
    try:
        from norm_geometry.measure import measure

        table = measure(options.pop("model"), options.pop("out"), **options)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(_summary(table))
    return 0


def _token_count(text: str) -> int | None:
    if text == "all":
        return None
    count = int(text.replace("_", ""))
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number or 'all', got {text}")
    return count


def _summary(table) -> str:
    uniform = table[table["direction"] == "uniform"]
    shown = ["site", "kind", "side", "count", "mean", "std", "energy_ratio", "rank", "norm_q50", "norm_maximum"]
    return uniform[shown].to_string(index=False, float_format="{:.2f}".format)


if __name__ == "__main__":
    sys.exit(main())
