"""What disturbs a trial, from the kernel's files and the GPU driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.load.test_trial import plan, run
from tests.scripted_server import scripted_server
from whet.core.load import Load
from whet.core.records.codec import decode, encode
from whet.core.records.load import ClientHealth, Disturbance
from whet.load import disturbance
from whet.load.disturbance import DisturbanceWatch, describe_disturbance
from whet.load.health import judge_health
from whet.load.window import Window

SECOND = 10**9
TICKS = os.sysconf("SC_CLK_TCK")

WINDOW_S = 10
CORES = 2


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class FakeMachine:
    """Two cores and a clock; ``watch`` reads its files, in which each total starts anywhere."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 1000.0
        self.own_s = 40.0

    def stat(self, *, user: float, idle: float, steal: float = 0, core_2: float = 0) -> None:
        """Seconds of core 0 and core 1 each; ``core_2`` is a core that whet may not use."""
        row = " ".join(str(round(s * TICKS)) for s in (user, 0, 0, idle, 0, 7, 7, steal, 0, 0))
        other = f"cpu2 {round(core_2 * TICKS)} 0 0 0 0 0 0 0 0 0\n"
        write(self.root / "proc/stat", f"cpu  1 2 3 4\ncpu0 {row}\ncpu1 {row}\n{other}intr 5\n")

    def pressure(self, folder: str, name: str, seconds: float) -> None:
        some = f"some avg10=1.00 avg60=2.00 avg300=3.00 total={round(seconds * 1e6)}\n"
        write(self.root / folder / name, some + some.replace("some", "full"))

    def cgroup(self, throttled_s: float) -> None:
        write(self.root / "proc/self/cgroup", "4:memory:/other\n0::/pod/whet\n")
        write(
            self.root / "cgroup/pod/whet/cpu.stat",
            f"usage_usec 1\nnr_throttled 3\nthrottled_usec {round(throttled_s * 1e6)}\n",
        )

    def watch(self, *, gpu: bool = False) -> DisturbanceWatch:
        return DisturbanceWatch(
            gpu=gpu,
            proc=self.root / "proc",
            cgroups=self.root / "cgroup",
            own_cpu_s=lambda: self.own_s,
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    made = FakeMachine(tmp_path)
    clock = SimpleNamespace(
        monotonic_ns=lambda: round(made.now_s * SECOND), time_ns=lambda: round(made.now_s * SECOND)
    )
    monkeypatch.setattr(disturbance, "time", clock)
    monkeypatch.setattr(disturbance, "_others_cpu_s", lambda: {(7, "backup"): made.now_s})
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(CORES))
    return made


def shares(found: Disturbance) -> dict[str, Any]:
    return {name: value for name, value in asdict(found).items() if value is not None}


def test_other_processes_use_what_is_busy_and_not_ours(machine: FakeMachine) -> None:
    """In 10 s two cores were busy for 18 s, 12 of them ours, idle for 1 and withheld for 1."""
    machine.stat(user=100, idle=50, steal=3, core_2=0)
    watch = machine.watch()
    machine.stat(user=109, idle=50.5, steal=3.5, core_2=10)
    machine.own_s += 12
    machine.now_s += WINDOW_S
    found = watch.stop()
    assert found.busiest == "backup"
    found = replace(found, busiest=None)
    assert shares(found) == pytest.approx({"other_cpu": 0.3, "idle_cpu": 0.05, "steal": 0.05})
    bounds = "(bounds 10% and 10%); end them, or wait"
    assert describe_disturbance(replace(found, busiest="backup")) == [
        "other processes used 30% of the machine's cores, backup most of it, and 5% was idle "
        f"{bounds}"
    ]


def test_work_of_the_kernel_cannot_be_ended() -> None:
    busy = Disturbance(other_cpu=0.3, idle_cpu=0.05)
    ends = {"backup": "end them, or wait", None: "end them, or wait"}
    ends |= dict.fromkeys(("[kworker/0:1]", "[kswapd0]"), "wait, or look at what loads the kernel")
    for name, fix in ends.items():
        (reason,) = describe_disturbance(replace(busy, busiest=name))
        assert reason.endswith(f"; {fix}")


def test_waiting_and_throttling_come_from_the_control_group(machine: FakeMachine) -> None:
    """2 s of waiting for a core in the group in 10 s (5 on the whole machine), 3 of memory."""
    machine.cgroup(throttled_s=60)
    machine.pressure("cgroup/pod/whet", "cpu.pressure", 100)
    machine.pressure("proc/pressure", "cpu", 100)
    machine.pressure("proc/pressure", "memory", 7)
    watch = machine.watch()
    machine.cgroup(throttled_s=65)
    machine.pressure("cgroup/pod/whet", "cpu.pressure", 102)
    machine.pressure("proc/pressure", "cpu", 105)
    machine.pressure("proc/pressure", "memory", 10)
    machine.now_s += WINDOW_S
    found = watch.stop()
    expected = {"cpu_pressure": 0.2, "memory_pressure": 0.3, "throttled": 0.25}
    assert shares(found) == pytest.approx(expected)
    reasons = " ".join(describe_disturbance(found))
    assert "CPU limit stopped the engine for 25%" in reasons
    assert "waited for memory in 30%" in reasons


def test_a_machine_without_these_files_is_unknown_and_valid(machine: FakeMachine) -> None:
    watch = machine.watch()
    machine.now_s += WINDOW_S
    found = watch.stop()
    assert found == Disturbance()
    assert judge_health(Window(), disturbance=found).valid


def test_ticks_of_a_short_window_are_not_judged(machine: FakeMachine) -> None:
    machine.stat(user=100, idle=50)
    machine.pressure("proc/pressure", "cpu", 1)
    watch = machine.watch()
    machine.stat(user=100.5, idle=50)
    machine.now_s += 0.5
    assert shares(watch.stop()) == {"cpu_pressure": 0.0}


QUIET = Disturbance(other_cpu=0.02, idle_cpu=0.01, steal=0.01, cpu_pressure=0.9, gpu_slowdowns=())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"other_cpu": 0.4, "idle_cpu": 0.3}, None),  # a free core was there
        ({"other_cpu": 0.11}, "other processes used 11%"),
        ({"steal": 0.2}, "the hypervisor withheld 20%"),
        ({"gpu_thermal": 0.5}, "slowed down by its heat in 50%"),
        ({"gpu_others": 0.3}, "other processes used 30% of the GPU"),
        ({"gpu_slowdowns": ("a power brake",)}, "the GPU driver reports a power brake"),
    ],
)
def test_a_disturbed_trial_is_invalid_and_says_why(
    change: dict[str, Any], words: str | None
) -> None:
    health = judge_health(Window(), disturbance=replace(QUIET, **change))
    assert health.valid == (words is None)
    assert (words or "") in (health.reason or "")
    assert decode(ClientHealth, encode(health)) == health


def test_a_record_of_an_earlier_version_has_no_disturbance() -> None:
    stored = encode(judge_health(Window()))
    del stored["disturbance"]
    assert decode(ClientHealth, stored).disturbance is None


class FakeDriver:
    """Two GPUs of NVML: we compute on the second one, and so does process 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import pynvml

        self.pids = {0: [1], 1: [1, os.getpid()]}
        self.reasons = {0: 0x40, 1: 0x04}  # the first one is hot, ours is at its power cap
        self.thermal_ns = {0: 0, 1: 5 * SECOND}
        self.samples = [
            SimpleNamespace(pid=1, smUtil=20),
            SimpleNamespace(pid=1, smUtil=40),
            SimpleNamespace(pid=os.getpid(), smUtil=60),
            SimpleNamespace(pid=os.getpid(), smUtil=50),
        ]
        answers = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: len(self.pids),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetComputeRunningProcesses": lambda index: [
                SimpleNamespace(pid=pid) for pid in self.pids[index]
            ],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda index: self.reasons[index],
            "nvmlDeviceGetViolationStatus": lambda index, _policy: SimpleNamespace(
                violationTime=self.thermal_ns[index]
            ),
            "nvmlDeviceGetProcessUtilization": lambda _index, _since: self.samples,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)


def test_only_the_gpus_of_the_server_count(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver(monkeypatch)
    clock_us = iter([0, 4_000_000])
    monkeypatch.setattr(
        disturbance,
        "time",
        SimpleNamespace(
            time_ns=lambda: next(clock_us) * 1000,
            monotonic_ns=lambda: round(machine.now_s * SECOND),
        ),
    )
    watch = machine.watch(gpu=True)
    driver.thermal_ns[1] += SECOND  # of 4
    driver.reasons[1] |= 0x80
    found = watch.stop()
    expected = {"gpu_thermal": 0.25, "gpu_others": 0.3, "gpu_slowdowns": ("a power brake",)}
    assert shares(found) == expected


def test_in_a_container_the_only_gpu_is_ours_and_its_other_users_are_unknown(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver(monkeypatch)
    driver.pids = {0: [1]}
    watch = machine.watch(gpu=True)
    found = watch.stop()
    assert (found.gpu_slowdowns, found.gpu_others) == (("a thermal slowdown",), None)


def test_a_driver_without_these_readings_is_unknown(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml

    def unsupported(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    FakeDriver(monkeypatch)
    for name in ("CurrentClocksThrottleReasons", "ViolationStatus", "ProcessUtilization"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", unsupported)
    assert machine.watch(gpu=True).stop() == Disturbance()
    monkeypatch.setattr(pynvml, "nvmlInit", unsupported)
    assert machine.watch(gpu=True).stop() == Disturbance()


@contextmanager
def busy_stranger(core: int) -> Iterator[None]:
    """A busy process that is not below this one; it ends by itself after a minute."""
    loop = (
        f"import os, time; os.sched_setaffinity(0, {{{core}}}); end = time.monotonic() + 60\n"
        "while time.monotonic() < end: pass"
    )
    words = ["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 & echo $!', sys.executable, loop]
    pid = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/pressure/cpu").exists(), reason="no pressure information")
def test_a_trial_beside_a_busy_process_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {core})
    with scripted_server(ttft_s=1.2) as server, busy_stranger(core):
        todo = plan(2, load=Load.at(1))
        disturbed = run(server.url, replace(todo, device="cpu"))
        unknown = run(server.url, replace(todo, device="remote"))
    assert disturbed.status == "complete"
    assert not disturbed.health.valid
    assert "other processes used" in (disturbed.health.reason or "")
    seen = disturbed.health.disturbance
    assert seen is not None
    assert seen.cpu_pressure is not None
    assert unknown.health.disturbance is None
