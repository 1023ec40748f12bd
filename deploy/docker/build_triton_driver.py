"""`build_triton_driver.py FOLDER`: compile Triton's driver for NVIDIA GPUs, so that an image needs
no C compiler.

FOLDER gets the result, and `cc`, which stands in for a compiler: it copies the result to where
Triton wants it, and refuses to compile anything else. This runs where there is no GPU, so the
driver is linked against an empty libcuda, which the real one replaces.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_CC = """\
#!/bin/sh
# In place of a C compiler: Triton's driver, which was compiled when this image was built.
source="$1"
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then
        case "$(basename "$2")" in
        cuda_utils*) exec cp "$(dirname "$0")/cuda_utils.so" "$2" ;;
        esac
    fi
    shift
done
echo "this image has no C compiler: $source is not compiled" >&2
exit 1
"""


def main(folder: Path) -> None:
    import triton
    from triton.runtime.build import _build

    nvidia = Path(triton.__file__).parent / "backends" / "nvidia"
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        stub = Path(scratch) / "libcuda.so.1"
        empty = ["gcc", "-shared", f"-Wl,-soname,{stub.name}", "-x", "c", "/dev/null"]
        subprocess.run([*empty, "-o", str(stub)], check=True)
        built = _build(
            "cuda_utils", str(nvidia / "driver.c"), scratch, [scratch],
            [str(nvidia / "include")], [], ["-Wl,--no-as-needed", f"-l:{stub.name}"],
        )  # fmt: skip
        (folder / "cuda_utils.so").write_bytes(Path(built).read_bytes())
    script = folder / "cc"
    script.write_text(_CC)
    script.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
