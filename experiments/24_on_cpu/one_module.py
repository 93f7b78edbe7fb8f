"""Runs one module of unittest tests under the switch and prints a line of JSON for each test:

    python one_module.py numba.cuda.tests.cudapy.test_sm

Its outcome is pass, skip, refuse (a message says that this does not exist without a GPU), report
(the machine says what a kernel does wrong) or fail.
"""

import json
import resource
import sys
import time
import unittest

from numba_marlin.on_cpu.switch import Options, start

# Words of refusals: of the machine, of the driver, of the linker, of numba-cuda without a device.
REFUSALS = (
    "UnknownInstruction",
    "LimitExceeded",
    "CUDA_ERROR_NOT_SUPPORTED",
    "which cannot run without a GPU",
    "Ensure the NVIDIA display driver is installed",
)
ORDER = ("skip", "refuse", "report", "fail")  # the worst of a test's parts is its outcome


class Outcomes(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.began, self.worst = time.process_time(), None

    def stopTest(self, test):
        super().stopTest(test)
        outcome, said = self.worst or ("pass", "")
        print(
            json.dumps(
                {
                    "test": test.id(),
                    "outcome": outcome,
                    "seconds": round(time.process_time() - self.began, 2),
                    "said": said,
                }
            ),
            flush=True,
        )

    def note(self, error):
        text = "".join(str(part) for part in (error[0].__name__, ": ", error[1]))
        if error[0].__name__ == "Skipped":  # pytest's
            self.worst = self.worst or ("skip", text[:1500])
            return
        if any(word in text for word in REFUSALS):
            outcome = "refuse"
        else:
            outcome = "report" if text.startswith("KernelError") else "fail"
        if self.worst is None or ORDER.index(outcome) > ORDER.index(self.worst[0]):
            self.worst = (outcome, text[:1500])

    def addError(self, test, err):
        super().addError(test, err)
        if not hasattr(self, "began"):  # of a class or a module
            self.worst = None
            self.began = time.process_time()
            self.note(err)
            self.stopTest(test)
        else:
            self.note(err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.note(err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.worst = self.worst or ("skip", reason)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.worst = ("fail", "passes, and was expected not to")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        seconds = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    start(Options())
    unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]).run(Outcomes())
