"""CUDA C++ to PTX, in place of cuda.core's Program and ProgramOptions, which ask a driver whether
it can read the result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Those of cuda.core's that numba-cuda sets."""

    arch: str
    include_path: list
    relocatable_device_code: bool = False
    link_time_optimization: bool = False
    name: str = ""
    debug: bool = False
    lineinfo: bool = False

    def flags(self) -> list[bytes]:
        arch = self.arch.replace("sm_", "compute_")
        flags = [f"--gpu-architecture={arch}"]
        flags += [f"--include-path={path}" for path in self.include_path]
        flags += ["--relocatable-device-code=true"] if self.relocatable_device_code else []
        flags += ["-dlto"] if self.link_time_optimization else []
        flags += ["--device-debug"] if self.debug else []
        flags += ["--generate-line-info"] if self.lineinfo else []
        return [flag.encode() for flag in flags]


class Program:
    """``compile("ptx")`` or "ltoir" of CUDA C++ ``source``. NVRTCError of cuda.core, with NVRTC's
    log, if it is not accepted."""

    def __init__(self, source: str, kind: str, options: Options) -> None:
        self.source, self.options = source, options

    def compile(self, target: str, logs=None):
        """An ObjectCode of cuda.core."""
        from cuda.bindings import nvrtc
        from cuda.core import ObjectCode
        from cuda.core._utils.cuda_utils import NVRTCError

        def checked(result):
            if int(result[0]):
                raise NVRTCError(f"{result[0].name}: {text()}")
            return result[1] if len(result) > 1 else None

        def text() -> str:
            log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
            nvrtc.nvrtcGetProgramLog(program, log)  # fills it
            return log.rstrip(b"\0 \n").decode("utf-8", "replace")

        name = self.options.name.encode()
        program = nvrtc.nvrtcCreateProgram(self.source.encode(), name, 0, [], [])[1]
        flags = self.options.flags()
        checked(nvrtc.nvrtcCompileProgram(program, len(flags), flags))
        if logs is not None and text():
            logs.write(text())
        kind = "PTX" if target == "ptx" else "LTOIR"
        code = bytes(checked(getattr(nvrtc, f"nvrtcGet{kind}Size")(program)))
        checked(getattr(nvrtc, f"nvrtcGet{kind}")(program, code))
        nvrtc.nvrtcDestroyProgram(program)
        if target == "ptx":
            return ObjectCode.from_ptx(code.rstrip(b"\0"), name=self.options.name)
        return ObjectCode.from_ltoir(code, name=self.options.name)
