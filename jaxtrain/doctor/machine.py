"""What the checks look at: the machine and the run that is meant for it, each fact asked for once."""

import dataclasses
import functools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtrain.config.schema import Distributed
from jaxtrain.distributed import detect
from jaxtrain.doctor import nvidia, programs
from jaxtrain.doctor.programs import Ended, Reply
from jaxtrain.errors import RefusedError

IMPORT_SECS, DEVICES_SECS, CONFIG_SECS, EXPERIMENT_SECS, SMI_SECS = 60.0, 120.0, 60.0, 300.0, 20.0


class Machine:
    """The facts of one call.

    argv: the flags of the config.   given_workdir: that of --workdir, if any.   max_secs: a limit for every wait.
    """

    def __init__(
        self,
        argv: Sequence[str] = (),
        workdir: Path | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        max_secs: float | None = None,
    ):
        self.argv = list(argv)
        self.given_workdir = workdir
        self.environ = dict(os.environ if environ is None else environ)
        self._max_secs = max_secs

    def at_most(self, secs: float) -> float:
        """Give the limit for a wait that may take `secs` seconds by itself."""
        return secs if self._max_secs is None else min(secs, self._max_secs)

    @property
    def has_config(self) -> bool:
        """Is a config given, or is there one in the workdir?"""
        stored = self.given_workdir is not None and (self.given_workdir / "config.json").is_file()
        return stored or any(argument.partition("=")[0] == "--config" for argument in self.argv)

    @functools.cached_property
    def jax(self) -> Reply:
        """Of "import" and "devices". Memory is taken only as it is needed, so that a run beside this one goes on."""
        return self._probe(["devices"], IMPORT_SECS if self._is_cpu else DEVICES_SECS)

    @functools.cached_property
    def collectives(self) -> Reply:
        """Of "psum" and "all_gather"."""
        return self._probe(["collectives"], DEVICES_SECS)

    @functools.cached_property
    def settings(self) -> Reply:
        """Of "settings": what the config says by itself. Needs no working JAX."""
        return self._probe(["settings", *self._run_arguments], CONFIG_SECS)

    @functools.cached_property
    def experiment(self) -> Reply:
        """Of "state" and "read <key>": what the config means on these devices."""
        num = str(self.cluster.get("num_processes", 1))
        return self._probe(["experiment", f"--num_processes={num}", *self._run_arguments], EXPERIMENT_SECS)

    @functools.cached_property
    def cluster(self) -> Mapping[str, Any]:
        """num_processes, index, coordinator and by, or only "trouble": what contradicts itself."""
        try:
            return dataclasses.asdict(detect.decide(Distributed(**self.setting("distributed", {})), self.environ))
        except RefusedError as error:
            return {"trouble": str(error)}

    def setting(self, name: str, default: Any) -> Any:
        """Give one of the config's settings, or the default where there is no config that can be read."""
        return self.settings["settings"].get(name, default) if "settings" in self.settings else default

    @functools.cached_property
    def workdir(self) -> Path | None:
        """Where the run would be written; None when nothing says."""
        if self.given_workdir is not None:
            return self.given_workdir
        name = self.setting("name", "") if self.has_config else ""
        return Path("runs") / name if name else None

    @property
    def has_driver(self) -> bool:
        """Is there any sign of an NVIDIA driver?"""
        signs = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
        return self._smi_path is not None or any(os.path.exists(sign) for sign in signs)

    @functools.cached_property
    def smi(self) -> Ended:
        """The output of `nvidia-smi`."""
        return self._run_smi()

    @functools.cached_property
    def topology(self) -> Ended:
        """The output of `nvidia-smi topo -m`."""
        return self._run_smi("topo", "-m")

    @functools.cached_property
    def gpus(self) -> list[nvidia.Gpu]:
        """Each GPU that the driver shows."""
        return nvidia.parse_gpus(self._run_smi(f"--query-gpu={nvidia.FIELDS}", "--format=csv,noheader,nounits").stdout)

    @functools.cached_property
    def linker_cache(self) -> str:
        """The output of `ldconfig -p`: libraries that the system has installed."""
        path = shutil.which("ldconfig", path=os.pathsep.join([self.environ.get("PATH", ""), "/sbin", "/usr/sbin"]))
        return programs.run([path, "-p"], self.at_most(SMI_SECS)).stdout if path else ""

    @property
    def _smi_path(self) -> str | None:
        return shutil.which("nvidia-smi", path=self.environ.get("PATH", ""))

    def _run_smi(self, *arguments: str) -> Ended:
        path = self._smi_path
        if path is None:
            return Ended(None, "", "", "nvidia-smi is not on the PATH")
        return programs.run([path, *arguments], self.at_most(SMI_SECS), self.environ)

    @property
    def _is_cpu(self) -> bool:
        return self.environ.get("JAX_PLATFORMS", "").startswith("cpu")

    @property
    def _run_arguments(self) -> list[str]:
        return [*([f"--workdir={self.given_workdir}"] if self.given_workdir else []), *self.argv]

    def _probe(self, arguments: Sequence[str], secs: float) -> Reply:
        environ = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **self.environ}
        return programs.probe(arguments, self.at_most(secs), environ)
