"""Every state of a machine that the doctor tells apart, as trees of ``sys`` and ``dev``."""

import os
import shutil

import pytest

from host import cli
from host.doctor import SECURE_BOOT, diagnose
from host.xdma import XdmaBoard
from tests.host.standin import StandInFiles

BDF = "0000:03:00.0"


@pytest.fixture
def machine(tmp_path):
    """A machine on which all is well but for the card itself; tests take things away."""
    device = tmp_path / "sys/bus/pci/devices" / BDF
    device.mkdir(parents=True)
    for name, text in (("vendor", "0x10ee"), ("device", "0x903f"), ("current_link_speed", "8.0 GT/s PCIe"),
                       ("max_link_speed", "8.0 GT/s PCIe"), ("current_link_width", "16"), ("max_link_width", "16")):
        (device / name).write_text(text + "\n")
    other = tmp_path / "sys/bus/pci/devices/0000:00:00.0"
    other.mkdir()
    (other / "vendor").write_text("0x8086\n")
    for folder in ("sys/module/xdma", "sys/class/xdma", "sys/bus/pci/drivers/xdma", "sys/bus/pci/drivers/vfio-pci",
                   "dev"):
        (tmp_path / folder).mkdir(parents=True)
    (device / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers/xdma")
    for node in ("control", "user", "h2c_0", "c2h_0", "events_0"):
        (tmp_path / f"dev/xdma0_{node}").touch()
    return tmp_path


def last(machine, opened=None, card=0):
    """The last finding: what stops the diagnosis, or the bitstream."""
    findings = list(diagnose(card, opened or _unreached, machine))
    assert all(finding.step for finding in findings if finding.state != "ok")
    assert [finding for finding in findings[:-1] if finding.state == "problem"] == []
    return findings[-1]


def _unreached():
    raise AssertionError("the card was opened")


def device(machine):
    return machine / "sys/bus/pci/devices" / BDF


def test_no_device(machine):
    shutil.rmtree(device(machine))
    finding = last(machine)
    assert (finding.check, finding.state) == ("PCIe device", "problem") and "rescan" in finding.step


def test_no_driver_and_secure_boot(machine):
    (machine / "sys/module/xdma").rmdir()
    finding = last(machine)
    assert finding.check == "driver loaded" and finding.found == "no module xdma" and "modprobe" in finding.step
    variable = machine / SECURE_BOOT
    variable.parent.mkdir(parents=True)
    variable.write_bytes(b"\x06\0\0\0\0")
    assert last(machine).found == "no module xdma"
    variable.write_bytes(b"\x06\0\0\0\x01")
    assert "secure boot is on" in last(machine).found and "mokutil" in last(machine).step


def test_the_kernels_own_module_of_the_same_name(machine):
    (machine / "sys/class/xdma").rmdir()
    assert "no character devices" in last(machine).found and "blacklist" in last(machine).step


def test_loaded_but_not_bound(machine):
    (device(machine) / "driver").unlink()
    finding = last(machine)
    assert "bound to no driver" in finding.found and "echo 10ee 903f > " in finding.step
    (device(machine) / "driver").symlink_to(machine / "sys/bus/pci/drivers/vfio-pci")
    assert "bound to driver vfio-pci" in last(machine).found and "unbind" in last(machine).step


def test_no_nodes(machine):
    for path in (machine / "dev").glob("xdma0_*"):
        path.unlink()
    assert last(machine).found == "no /dev/xdma0_*" and "dmesg" in last(machine).step
    (machine / "dev/xdma2_user").touch()
    assert "there are xdma2" in last(machine).found and "--board xdma:N" in last(machine).step


def test_a_bitstream_without_control_registers_or_dma(machine):
    (machine / "dev/xdma0_user").unlink()
    assert last(machine).check == "control node" and "AXI4-Lite" in last(machine).found
    (machine / "dev/xdma0_user").touch()
    (machine / "dev/xdma0_c2h_0").unlink()
    assert "no /dev/xdma0_c2h_0" in last(machine).found


def test_no_permission(machine, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "h2c" not in str(path) and access(path, mode))
    finding = last(machine)
    assert finding.check == "permission" and "/dev/xdma0_h2c_0" in finding.found and "udev" in finding.step


def test_a_slow_or_narrow_link_is_a_warning(machine, card):
    _, path = card()
    (device(machine) / "current_link_width").write_text("8\n")
    (device(machine) / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    findings = {finding.check: finding for finding in
                diagnose(0, lambda: XdmaBoard("tiny", 0, StandInFiles(path)), machine)}
    link = findings["link"]
    assert link.state == "warning" and "speed and width lower than built" in link.found
    assert "2.5 GT/s PCIe x8, built for 8.0 GT/s PCIe x16" in link.found
    assert findings["bitstream"].state == "ok"


@pytest.mark.parametrize("registers, message", [
    ({}, "preset tiny, protocol version"), ({"MAGIC": 5}, "MAGIC reads 0x00000005"), ({"CORES": 9}, "CORES reads 0x9"),
    ({"MAGIC": 0xFFFFFFFF}, "is gone"),
])
def test_the_bitstream_is_identified(machine, card, registers, message):
    _, path = card(registers=registers)
    finding = last(machine, lambda: XdmaBoard("tiny", 0, StandInFiles(path)))
    assert finding.check == "bitstream" and message in finding.found
    assert finding.state == ("problem" if registers else "ok")


def test_the_command_says_the_next_step_and_fails(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("host.doctor.diagnose.__defaults__", (tmp_path,))
    assert cli.main(["doctor"]) == cli.BOARD
    out = capsys.readouterr().out
    assert out.startswith("problem  PCIe device: no device of vendor 0x10ee") and "next: check power" in out
    assert cli.main(["doctor", "--board", "golden", "--json"]) == 0
    assert '"usable": true' in capsys.readouterr().out
    assert cli.main(["doctor", "--board", "xdma:x"]) == cli.USAGE
    assert "only xdma takes a card number, as in xdma:1" in capsys.readouterr().err
