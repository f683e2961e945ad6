"""Run the tests as on another x86-64 CPU: `python tests/support/cpu.py plain ...` (`make test-portable`).

numpy, both copies of OpenBLAS (numpy and scipy bundle one each) and numba choose their code by the CPU. Environment
variables override the choice; subprocesses and Ray actors inherit them.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AVX512 = ("avx512", "evex", "avx10", "amx")  # prefixes of LLVM's features for 512-bit vectors
SKYLAKE = ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "evex512")


@dataclass(frozen=True)
class Cpu:
    """A kind of CPU.

    openblas: a core type, and other names under which OpenBLAS reports it. numba: a CPU name of LLVM.
    newer: prefixes of the numpy features that this CPU lacks.
    """

    openblas: tuple[str, ...]
    numba: str
    newer: tuple[str, ...]


CPUS = {
    "plain": Cpu(("Prescott", "Katmai"), "generic", ("",)),
    "avx2": Cpu(("Haswell",), "haswell", ("AVX512", "X86_V4")),
    "avx512": Cpu(("SkylakeX",), "skylake-avx512", ("AVX512_CLX", "AVX512_CNL", "AVX512_ICL", "AVX512_SPR")),
}


def numpy_features() -> list[str]:
    """Return the features for which numpy has code that this machine can run; only these can be disabled."""
    try:
        from numpy._core import _multiarray_umath as core
    except ImportError:  # numpy 1
        from numpy.core import _multiarray_umath as core
    return [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]]


def llvm_features(cpu: Cpu) -> str:
    """Return the features that numba may use: those of this machine without the ones that the CPU lacks."""
    import llvmlite.binding as llvm

    if cpu.numba == "generic":
        return ""
    kept = SKYLAKE if cpu.numba == "skylake-avx512" else ()
    features = llvm.get_host_cpu_features()
    return ",".join(
        f"{'+' if on and (name in kept or not name.startswith(AVX512)) else '-'}{name}"
        for name, on in sorted(features.items())
    )


def supports_avx512() -> bool:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return all(features.get(name, False) for name in SKYLAKE if name != "evex512")


def environment(name: str) -> dict[str, str]:
    """Return the variables that make this machine compute like the CPU of that name."""
    cpu = CPUS[name]
    return {
        "OPENBLAS_CORETYPE": cpu.openblas[0],
        "NUMBA_CPU_NAME": cpu.numba,
        "NUMBA_CPU_FEATURES": llvm_features(cpu),
        "NUMBA_CACHE_DIR": str(ROOT / "build" / "numba" / name),
        "NPY_DISABLE_CPU_FEATURES": " ".join(f for f in numpy_features() if f.startswith(cpu.newer)),
    }


def describe() -> str:
    """Return what numpy, OpenBLAS and numba use in this process."""
    import scipy.linalg  # noqa: F401, loads scipy's OpenBLAS
    import threadpoolctl
    from numba.core import config

    blas = [library for library in threadpoolctl.threadpool_info() if library["internal_api"] == "openblas"]
    cores = ", ".join(f"{Path(library['filepath']).parent.name}: {library['architecture']}" for library in blas)
    return f"OpenBLAS ({cores}); numba: {config.CPU_NAME}; numpy: {' '.join(numpy_features()) or 'baseline'}"


def main(name: str, *arguments: str) -> int:
    """Compile the kernels and run pytest with these arguments, as on that CPU; return the exit code."""
    if name == "avx512" and not supports_avx512():
        print("This machine has no AVX-512, so the variant avx512 does not run.")
        return 0
    variables = os.environ | environment(name)
    code = "from support.cpu import describe; print(describe())"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "tests", env=variables, capture_output=True, text=True, check=False
    )
    print(f"{name}: {found.stdout}{found.stderr}", end="", flush=True)
    if sum(found.stdout.count(f": {core}") for core in CPUS[name].openblas) != 2:
        print(f"Not every copy of OpenBLAS uses the core type {CPUS[name].openblas[0]}.", file=sys.stderr)
        return 1
    subprocess.run([sys.executable, "-m", "support.warm_up"], cwd=ROOT / "tests", env=variables, check=True)
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
