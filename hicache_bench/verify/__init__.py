"""Tier suites: scenarios as data, played against a server, judged answer by answer; and calibration.

For tests of your own: `verify` plays cases and returns a `Result` with one `CaseResult` a case.
"""

from hicache_bench.verify.calibrate import CalibrateOptions, calibrate
from hicache_bench.verify.steps import SHIPPED, load_scenarios
from hicache_bench.verify.suite import CaseResult, Result, VerifyOptions, verify

__all__ = ["SHIPPED", "CalibrateOptions", "CaseResult", "Result", "VerifyOptions", "calibrate", "load_scenarios",
           "verify"]
