"""What the programs of the driver print on several machines, and a nvidia-smi that prints it."""

import dataclasses
import shlex
from pathlib import Path

HEAD = """Tue Dec  1 09:12:44 2026
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI {driver:<20} Driver Version: {driver:<14} CUDA Version: {cuda:<8} |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|=========================================+======================+======================|
|   0  {name:<34} | 00000000:07:00.0 Off |                    0 |
| N/A   27C    P0              61W / 400W |      4MiB / 81920MiB |      0%      Default |
+-----------------------------------------+----------------------+----------------------+
"""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The output of `nvidia-smi`, of its query for GPUs and of `topo -m`, and the exit code of all."""

    smi: str
    gpus: str = ""
    topology: str = ""
    returncode: int = 0


def head(name: str, driver: str, cuda: str) -> str:
    return HEAD.format(name=name, driver=driver, cuda=cuda)


def gpus(num: int, name: str, memory: int, driver: str, used: int = 4, errors: str = "0", mig: str = "Disabled") -> str:
    return "".join(f"{index}, {name}, {memory}, {used}, {driver}, {errors}, {mig}\n" for index in range(num))


def all_pairs(num: int, link: str) -> str:
    """The matrix of a machine with a switch, as `topo -m` underlines it, with network cards behind the GPUs."""
    names = [f"GPU{index}" for index in range(num)]
    lines = [
        "\t\x1b[4m" + "\t".join([*names, "NIC0", "NIC1", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m"
    ]
    for row in range(num):
        links = [" X " if row == column else link for column in range(num)]
        lines.append("\t".join([names[row], *links, "PXB", "SYS", "0-55,112-167", "0", "N/A"]))
    lines.append("\t".join(["NIC0", *["PXB"] * num, " X ", "SYS"]))
    lines.append("\t".join(["NIC1", *["SYS"] * num, "SYS", " X "]))
    return "\n".join(lines) + "\n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


A100 = Recorded(
    head("NVIDIA A100-SXM4-80GB", "535.129.03", "12.2"),
    gpus(8, "NVIDIA A100-SXM4-80GB", 81920, "535.129.03"),
    all_pairs(8, "NV12"),
)
H100 = Recorded(
    head("NVIDIA H100 80GB HBM3", "580.95.05", "13.0"),
    gpus(8, "NVIDIA H100 80GB HBM3", 81559, "580.95.05"),
    all_pairs(8, "NV18"),
)
CONSUMER = Recorded(
    head("NVIDIA GeForce RTX 4090", "560.35.03", "12.6"),
    gpus(1, "NVIDIA GeForce RTX 4090", 24564, "560.35.03", used=412, errors="[N/A]", mig="[N/A]"),
    "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-31\t0\t\tN/A\n",
)
TWO_SOCKETS = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\tSYS\t0-15\t0
GPU1\tNV4\t X \tSYS\tSYS\t0-15\t0
GPU2\tSYS\tSYS\t X \tNV4\t16-31\t1
GPU3\tSYS\tSYS\tNV4\t X \t16-31\t1
"""
BRIDGED = Recorded(
    head("NVIDIA GeForce RTX 3090", "570.124.06", "12.8"),
    gpus(4, "NVIDIA GeForce RTX 3090", 24576, "570.124.06", used=9, errors="[N/A]", mig="[N/A]"),
    TWO_SOCKETS,
)
OLD = Recorded(
    head("Tesla V100-SXM2-32GB", "470.82.01", "11.4"),
    gpus(4, "Tesla V100-SXM2-32GB", 32510, "470.82.01", mig="[N/A]"),
    all_pairs(4, "NV2"),
)
NO_DRIVER = Recorded(
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n\n",
    returncode=9,
)
MISMATCH = Recorded(
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n", returncode=18
)
LOST = Recorded("No devices were found\n", returncode=6)

LDCONFIG = """412 libs found in cache `/etc/ld.so.cache'
\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl.so.2
\tlibcudnn_ops.so.9 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcudnn_ops.so.9
\tlibcudnn.so.9 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcudnn.so.9
\tlibcudnn.so.8 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcudnn.so.8
\tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/x86_64-linux-gnu/libc.so.6
"""


def install(directory: Path, recorded: Recorded) -> str:
    """Put a nvidia-smi into a directory; gives a PATH that begins with it."""
    directory.mkdir(exist_ok=True)
    program = directory / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1" in\n'
        f"  --query-gpu=*) printf %s {shlex.quote(recorded.gpus or recorded.smi)} ;;\n"
        f"  topo) printf %s {shlex.quote(recorded.topology or recorded.smi)} ;;\n"
        f"  *) printf %s {shlex.quote(recorded.smi)} ;;\n"
        f"esac\nexit {recorded.returncode}\n"
    )
    program.chmod(0o755)
    return f"{directory}:/usr/bin:/bin"
