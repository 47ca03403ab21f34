"""All tests of this folder one after the other, where there is no pytest: python -m tests.gpu"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from pathlib import Path


def main() -> int:
    wanted, failed = sys.argv[1:], 0
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.gpu.{path.stem}")
        for name, test in list(vars(module).items()):
            if not name.startswith("test_") or (
                wanted and not any(each in name for each in wanted)
            ):
                continue
            began_s = time.perf_counter()
            try:
                test()
                end = "passed"
            except Exception:  # whatever a test raises
                end, failed = "FAILED\n" + traceback.format_exc(), failed + 1
            print(f"{name} {time.perf_counter() - began_s:.1f} s {end}", flush=True)
    print("all passed" if not failed else f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
