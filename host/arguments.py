"""Arguments of ``fastcar-host``, and its exit codes."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from host.boards import BOARDS
from host.settings import DEFAULT_GATE, DEFAULT_RATIO, DTYPES, GATES, VARIANTS, SettingsError
from hw.config import PRESETS
from model.config import POSITIONS

USAGE, MODEL, OUTPUT, BOARD, DIFFERENT, INTERRUPTED = 2, 3, 4, 5, 6, 130

EXIT_CODES = f"""\
exit codes:
  0    done; also when interrupted with a partial video, stats.json then says so
  {USAGE}    wrong setting or prompt
  {MODEL}    no usable model
  {OUTPUT}    results cannot be written
  {BOARD}    the board failed or cannot be built
  {DIFFERENT}    the board's results are not the golden model's
  {INTERRUPTED}  interrupted before a frame was finished"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors go the way of all others: one line, and JSON where that is asked for."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see {self.prog} --help")


def parser(commands: Mapping[str, Callable]) -> argparse.ArgumentParser:
    """The parser; the chosen command's function becomes ``run``."""
    top = _Parser(prog="fastcar-host", epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter,
                  description="Generate videos with the MLPs of the model on an accelerator board.")
    subparsers = top.add_subparsers(required=True, metavar="COMMAND")
    texts = {
        "generate": "generate videos from prompts",
        "info": "show identification, configuration and capabilities of a board",
        "board-test": "write and read memory, run a random job, compare with the golden model",
        "doctor": "find out why a board cannot be used, and what to do next",
        "bench-link": "measure round trips of registers and transfer rates of memory",
    }
    for name, add in (("generate", _add_generate), ("info", lambda command: None), ("board-test", _add_board_test),
                      ("doctor", _add_doctor), ("bench-link", _add_bench_link)):
        command = subparsers.add_parser(name, help=texts[name], description=texts[name].capitalize() + ".",
                                        epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter)
        command.set_defaults(run=commands[name])
        add(command)
        command.add_argument("--board", metavar="|".join(BOARDS),
                             help="sim: the RTL under Verilator, compiled on first use; golden: the integer model; "
                                  "xdma or xdma:N: the PCIe card behind /dev/xdmaN_* "
                                  f"(default {'xdma' if name == 'doctor' else 'sim'})")
        command.add_argument("--preset", default="sim", metavar="|".join(PRESETS),
                             help="accelerator configuration of the board (default sim)")
        command.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    return top


def _add_generate(command: argparse.ArgumentParser) -> None:
    command.description = ("Generate videos: video.mp4, frames/*.png, tokens.npy and stats.json in the output folder\n"
                           "(videos in sub-folders if there are several). Ctrl-C ends early, finished frames are kept.")
    add = command.add_argument
    add("--prompt", required=True, action="append", metavar="TEXT",
        help="e.g. 'a large red circle moves right on a blue background'; several times for several videos")
    add("--frames", type=int, metavar="N", help="frames of a video (default: the model's)")
    add("--seed", type=int, default=0, metavar="S", help="seed of the first video, S+1 of the second, ... (default 0)")
    add("--num-videos", type=int, default=1, metavar="K", help="videos per prompt (default 1)")
    add("--cfg-scale", type=float, metavar="X",
        help="classifier-free guidance; 1 turns it off and halves the rows (default: the model's)")
    add("--gate", default=DEFAULT_GATE, metavar="|".join(GATES),
        help="what decides on replay. tas: the board compares attention scores (the paper's); "
             f"change: the host compares MLP inputs (default {DEFAULT_GATE})")
    amount = command.add_mutually_exclusive_group()
    amount.add_argument("--threshold", type=_numbers, metavar="T[,T...]",
                        help="of the gate, one number or one per layer. tas: replays from T up (a raw logit); change: "
                             "replays up to T (relative change); inf and -inf are allowed, write --threshold=-inf")
    amount.add_argument("--replay-ratio", type=float, metavar="R",
                        help="share of the steps after frame 0 that replay, 0..1, by calibrated thresholds "
                             f"(default {DEFAULT_RATIO})")
    amount.add_argument("--dense", action="store_true", help="no replay")
    add("--joint-pairs", action="store_true", help="a prompt and its unconditional twin replay together or not at all")
    add("--variant", default="paper", metavar="|".join(VARIANTS),
        help="score that the tas gate compares: query and key after RoPE, the authors' code (query before RoPE), or "
             "normalised (default paper)")
    add("--window", type=int, metavar="W",
        help="visual steps attended to besides the prompt (default: the model's own, all of them for VILA-U). Replay "
             "ratios were calibrated with the model's own")
    add("--positions", default="sequence", metavar="|".join(POSITIONS),
        help="where the prompt stands once the window has moved on: where it was, or right before the window as in "
             "StreamingLLM (default sequence)")
    for name, kind, text in (("temperature", float, "0 takes the most probable code"),
                             ("top-k", int, "codes drawn from"), ("top-p", float, "VILA-U only: 0..1, probability "
                                                                  "that the codes drawn from have together")):
        add(f"--{name}", type=kind, metavar="X", help=f"{text} (default: the model's)")
    add("--model", type=Path, metavar="DIR",
        help="folder of a trained model: one of this project (default: the one shipped), or a VILA-U release, whose "
             "MLPs run in PyTorch and not on a board")
    add("--device", default="cpu", metavar="D", help="torch device of a VILA-U model, e.g. cuda (default cpu)")
    add("--dtype", default="float32", metavar="|".join(DTYPES), help="precision of a VILA-U model (default float32)")
    add("--dry-run", action="store_true",
        help="print parameters and memory of weights, keys and values, and replay, and whether it fits; exit code 3 "
             "if it does not")
    add("--verify", action="store_true", help="run the golden model beside the board, stop at the first difference")
    add("--out", type=Path, default=Path("build/out"), metavar="DIR", help="output folder (default build/out)")
    add("--fps", type=int, default=8, help="frames per second of the video (default 8)")
    add("--upscale", type=int, metavar="U",
        help="video pixels per picture pixel and axis (default 4, for VILA-U 1)")


def _add_board_test(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--hidden", type=int, default=128, help="hidden size of the job, multiple of 32 (default 128)")
    add("--intermediate", type=int, default=256, help="intermediate size of the job, multiple of 32 (default 256)")
    add("--rows", type=int, default=5, help="rows of the job, 1..32; a quarter of them replays (default 5)")
    add("--seed", type=int, default=0, help="of the random data (default 0)")


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.description = ("Look at all that lies between a card and this program, from the PCIe slot up: device,\n"
                           "driver, secure boot, binding, link width and speed, nodes, permissions, bitstream.\n"
                           "Each line says what was found; a problem comes with the next step, and exit code 5.")


def _add_bench_link(command: argparse.ArgumentParser) -> None:
    command.description = ("Measure round trips of register accesses and transfer rates of memory, as the rest of\n"
                           "this program sees them. Overwrites the start of the board's memory.")
    command.add_argument("--seconds", type=float, default=0.2, metavar="S",
                         help="time per figure, once at least (default 0.2)")
    command.add_argument("--seed", type=int, default=0, help="of the random data (default 0)")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no threshold: give a number, or one per layer separated by commas, "
            "inf and -inf included") from None
