"""The command line: `python -m norm_geometry --help`, and after each command too."""

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m norm_geometry", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure the angles before and after every norm of a model")
    measuring.add_argument("--model", required=True, help="a known name, a Hub id (organisation/model), a local folder")
    measuring.add_argument("--revision", help="branch, tag or commit of a model on the Hub")
    measuring.add_argument("--tokens", required=True, type=_token_count, help="how many tokens, or 'all'")
    measuring.add_argument(
        "--text",
        default="packaged",
        help="packaged (a part of Wikipedia that comes along), online (all of it), or a file (default: %(default)s)",
    )
    measuring.add_argument("--length", type=int, default=512, help="tokens in a sequence (default: %(default)s)")
    measuring.add_argument("--batch-size", type=int, default=8, help="sequences in a batch (default: %(default)s)")
    measuring.add_argument(
        "--skip", type=int, default=0, help="tokens left out at the start of each sequence (default: %(default)s)"
    )
    measuring.add_argument("--device", help="cpu, cuda, mps, or auto: spread over all GPUs (default: what there is)")
    measuring.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help="of the model (default: float32 on cpu, else bfloat16 where the device has it)",
    )
    measuring.add_argument("--seed", type=int, default=0, help="of the random directions (default: %(default)s)")
    measuring.add_argument(
        "--out", required=True, help="the .csv file to write, with its provenance in a .json beside it"
    )
    training = commands.add_parser("train", help="train a GPT-2 with LayerNorm or RMSNorm and record the angles")
    training.add_argument("--size", default="nano", help="nano, 70m, 160m, 410m or 1b (default: %(default)s)")
    training.add_argument("--norm", choices=["layer", "rms"], required=True)
    training.add_argument("--seed", type=int, default=0, help="of weights and order of the text (default: %(default)s)")
    training.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw", help="(default: %(default)s)")
    training.add_argument("--weight-decay", type=float, default=0.1, help="of matrices (default: %(default)s)")
    training.add_argument("--learning-rate", dest="rate", type=float, help="the greatest (default: that of the size)")
    training.add_argument("--steps", type=int, help="(default: those of the size)")
    training.add_argument(
        "--at-once", type=int, default=8, help="windows in one forward pass, as memory allows (default: %(default)s)"
    )
    training.add_argument("--out", required=True, help="the folder for weights and tables")
    for command in (measuring, training):
        command.add_argument(
            "--checkpoint-every",
            type=float,
            default=60.0,
            metavar="SECONDS",
            help="how often the state is saved, from which an interrupted run goes on (default: %(default)s)",
        )
    commands.add_parser("models", help="list the models known by name, and how this machine can run them")
    options = vars(parser.parse_args(arguments))
    try:
        print({"models": _overview, "measure": _measure, "train": _train}[options.pop("command")](**options))
    except (FloatingPointError, ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


def _overview() -> str:
    from norm_geometry.models import overview

    shown = {"parameters": "{:,}".format, "float32 GB": "{:.1f}".format, "bfloat16 GB": "{:.1f}".format}
    return overview().to_string(index=False, formatters=shown)


def _measure(model: str, out: str, dtype: str | None, **options) -> str:
    import torch

    from norm_geometry.measure import measure

    table = measure(model, out, dtype=dtype and getattr(torch, dtype), **options)
    uniform = table[table["direction"] == "uniform"]
    shown = ["site", "kind", "side", "count", "mean", "std", "energy_ratio", "rank", "norm_q50", "norm_maximum"]
    return uniform[shown].to_string(index=False, float_format="{:.2f}".format)


def _train(out: str, **options) -> str:
    from norm_geometry import results, training

    training.train(out, **options)
    losses, _ = results.load(f"{out}/losses.csv")
    recorded = losses[["step", "training_loss", "held_out_loss"]].dropna(subset="held_out_loss")
    return recorded.to_string(index=False, float_format="{:.3f}".format)


def _token_count(text: str) -> int | None:
    if text == "all":
        return None
    count = int(text.replace("_", ""))
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number or 'all', got {text}")
    return count


if __name__ == "__main__":
    sys.exit(main())
