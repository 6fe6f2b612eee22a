"""What keeps a card from being used: from the PCIe slot up to the identification registers, and the next step."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host.board import Board, BoardError
from host.driver import Driver

VENDOR = "0x10ee"
"""PCI vendor of Xilinx, which the XDMA core shows unless it was built with another."""
DRIVER = "xdma"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``state``: :data:`OK`, :data:`WARNING` (it works, but not as it should) or
    :data:`PROBLEM` (it cannot work); ``step``: what to do next, empty where all is well."""

    check: str
    state: str
    found: str
    step: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"check": self.check, "state": self.state, "found": self.found, "step": self.step}


def diagnose(card: int, opened: Any, root: Path = Path("/")) -> Iterator[Finding]:
    """Look at everything that card ``card`` needs, from the bottom up, until something makes the rest pointless.

    Parameters
    ----------
    opened : () -> :class:`~host.board.Board`
        Opens the card.
    root : where ``sys`` and ``dev`` are
    """
    devices = [path for path in sorted((root / "sys/bus/pci/devices").glob("*")) if _text(path / "vendor") == VENDOR]
    if not devices:
        yield Finding("PCIe device", PROBLEM, f"no device of vendor {VENDOR} is on the bus",
                      "check power and seat of the card; a card that was configured after the machine had started is "
                      "seen after 'echo 1 > /sys/bus/pci/rescan' or a warm reboot")
        return
    names = ", ".join(f"{path.name} ({_text(path / 'device')})" for path in devices)
    yield Finding("PCIe device", OK, names)
    driver = _driver(root)
    yield driver
    if driver.state == PROBLEM:
        return
    bound = [path for path in devices if _driver_of(path) == DRIVER]
    if not bound:
        yield _unbound(devices)
        return
    yield Finding("driver bound", OK, ", ".join(path.name for path in bound))
    for path in bound:
        yield _link(path)
    nodes = list(_nodes(root, card))
    yield from nodes
    if all(node.state == OK for node in nodes):
        yield _identification(opened)


def _driver(root: Path) -> Finding:
    check = "driver loaded"
    if (root / "sys/module" / DRIVER).is_dir():
        if (root / "sys/class" / DRIVER).is_dir():
            return Finding(check, OK, f"module {DRIVER} with character devices")
        return Finding(check, PROBLEM, f"module {DRIVER} is the one of the Linux kernel itself (6.3 and later), which "
                                       "has the name but no character devices",
                       "rmmod xdma, blacklist the kernel's own, and load the one of github.com/Xilinx/dma_ip_drivers")
    if _secure_boot(root):
        return Finding(check, PROBLEM, f"no module {DRIVER}, and secure boot is on, which refuses modules without a "
                                       "known signature",
                       "sign xdma.ko with a key that is enrolled with mokutil --import, or turn secure boot off; "
                       "then modprobe xdma")
    return Finding(check, PROBLEM, f"no module {DRIVER}",
                   "build and install XDMA/linux-kernel/xdma of github.com/Xilinx/dma_ip_drivers, then modprobe xdma")


def _secure_boot(root: Path) -> bool:
    try:
        return (root / SECURE_BOOT).read_bytes()[4:5] == b"\x01"  # four bytes of attributes come first
    except OSError:
        return False


def _unbound(devices: list[Path]) -> Finding:
    device = devices[0]
    other = _driver_of(device)
    address, identifier = device.name, _text(device / "device").removeprefix("0x")
    if other:
        return Finding("driver bound", PROBLEM, f"{address} is bound to driver {other}",
                       f"echo {address} > /sys/bus/pci/drivers/{other}/unbind, then echo {address} > "
                       "/sys/bus/pci/drivers/xdma/bind")
    return Finding("driver bound", PROBLEM, f"{address} (device {identifier}) is bound to no driver",
                   f"echo {VENDOR[2:]} {identifier} > /sys/bus/pci/drivers/xdma/new_id, for the driver may not know "
                   "this device; dmesg says why a probe failed")


def _link(device: Path) -> Finding:
    """What the link runs at, against what the bitstream and the slot could do."""
    found = [_text(device / f"{which}_link_{what}") for which in ("current", "max") for what in ("speed", "width")]
    speed, width, most_speed, most_width = found
    text = f"{device.name}: {speed} x{width}, built for {most_speed} x{most_width}"
    if not all(found):
        return Finding("link", WARNING, f"{device.name}: the kernel does not say", "look at lspci -vv, LnkSta")
    slow = [name for name, low in (("speed", _number(speed) < _number(most_speed)),
                                   ("width", _number(width) < _number(most_width))) if low]
    if not slow:
        return Finding("link", OK, text)
    return Finding("link", WARNING, f"{text}: {' and '.join(slow)} lower than built",
                   "use a slot with as many lanes from the processor, reseat the card, look at the slot's settings in "
                   "the firmware; the card works, transfers are slower (fastcar-host bench-link)")


def _nodes(root: Path, card: int) -> Iterator[Finding]:
    missing, refused = [], []
    for node in ("user", "h2c_0", "c2h_0"):
        path = root / f"dev/xdma{card}_{node}"
        if not path.exists():
            missing.append(node)
        elif not os.access(path, os.R_OK | os.W_OK):
            refused.append(node)
    names = f"/dev/xdma{card}_*"
    if len(missing) == 3:
        others = sorted({path.name.split("_")[0] for path in (root / "dev").glob("xdma*_*")})
        yield Finding("nodes", PROBLEM, f"no {names}" + (f"; there are {', '.join(others)}" if others else ""),
                      "name one of those with --board xdma:N" if others else
                      "dmesg says why the probe made none; udevadm trigger makes them again")
    elif "user" in missing:
        yield Finding("control node", PROBLEM, f"no /dev/xdma{card}_user: the bitstream has no AXI4-Lite master, so "
                                               "its control registers cannot be reached",
                      "load a bitstream that was built for this project (python -m hw.build)")
    elif missing:
        yield Finding("nodes", PROBLEM, "no " + ", ".join(f"/dev/xdma{card}_{node}" for node in missing) +
                      ": the bitstream has no DMA channel of this direction",
                      "load a bitstream that was built for this project (python -m hw.build)")
    elif refused:
        yield Finding("permission", PROBLEM, "no right to read and write " +
                      ", ".join(f"/dev/xdma{card}_{node}" for node in refused),
                      "put SUBSYSTEM==\"xdma\", GROUP=\"xdma\", MODE=\"0660\" into /etc/udev/rules.d/99-xdma.rules, "
                      "join the group, udevadm control --reload, udevadm trigger")
    else:
        yield Finding("nodes", OK, names)


def _identification(opened: Any) -> Finding:
    board: Board
    try:
        with opened() as board:
            found = Driver(board).identification
            return Finding("bitstream", OK, f"preset {board.config.name}, protocol version {found['VERSION']}")
    except BoardError as error:
        return Finding("bitstream", PROBLEM, str(error),
                       "load the bitstream of the preset named with --preset, or name the preset that is loaded")


def _driver_of(device: Path) -> str:
    """Name of the driver that a device is bound to, empty for none."""
    try:
        return Path(os.readlink(device / "driver")).name
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> float:
    """The number that ``8.0 GT/s PCIe`` or ``16`` begins with; 0 where the kernel says that it does not know."""
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return 0.0
