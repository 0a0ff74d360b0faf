"""What one Locust process does for its role: local, master or worker; hung on Locust's events."""


from __future__ import annotations

import logging
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust.runners import LocalRunner, MasterRunner, WorkerRunner

from hicache_bench.errors import BenchError, UsageError
from hicache_bench.locust_user.local import LocalRun
from hicache_bench.locust_user.master import FrozenDispatcher, MasterRun, refuse_late
from hicache_bench.locust_user.node import Node
from hicache_bench.locust_user.options import reach, settings
from hicache_bench.locust_user.shape import StageShape
from hicache_bench.locust_user.tab import add_tab
from hicache_bench.locust_user.worker import WorkerSide
from hicache_bench.workload.spec import WorkloadSpec, load_spec

log = logging.getLogger(__name__)

CLASS_OPTIONS = ("workload", "slo", "api", "trace")
"""Options whose defaults are attributes of the user class."""

MOST_SPAWN_PER_S = 100.0
"""Locust warns above it."""


class Conductor:
    """Starts and ends runs in a local process or a master."""

    def __init__(self, environment: Any, user_class: Any) -> None:
        self._environment, self._options = environment, environment.parsed_options
        self._run: LocalRun | MasterRun | None = None
        self._last_live: dict[str, Any] | None = None
        self._duration_s: float | None = None
        self._concluding: Event | None = None
        self.over = False
        _defaults(self._options, user_class)
        self._given = {name: getattr(self._options, name) for name in CLASS_OPTIONS if getattr(self._options, name)}
        # The start page parses the command line anew for its form, and sends back what it shows.
        environment.events.init_command_line_parser.add_listener(lambda parser, **_: parser.set_defaults(**self._given))
        spec = _spec(self._options)
        self._own_clock(spec)
        events = environment.events
        events.test_start.add_listener(self._test_start)
        events.test_stopping.add_listener(lambda **_: self._conclude())
        events.quitting.add_listener(lambda **_: self._conclude())
        if isinstance(environment.runner, MasterRunner):
            environment.dispatcher_class = FrozenDispatcher
            refuse_late(environment, lambda: self._run if isinstance(self._run, MasterRun) else None)
        if environment.web_ui is not None:
            add_tab(environment.web_ui, lambda: self.live)

    @property
    def node(self) -> Node | None:
        return self._run.node if isinstance(self._run, LocalRun) else None

    @property
    def live(self) -> dict[str, Any] | None:
        """The tab's figures: of the run under way, else of the last one."""
        return (self._run.live if self._run is not None else None) or self._last_live

    def _own_clock(self, spec: WorkloadSpec) -> None:
        """Users and run time as the workload has them, unless given. Locust's timer would count the reset and
        the priming as run time, so a run time becomes the plan's duration and the plan ends the test."""
        options, processes = self._options, max(1, self._options.expect_workers or 1)
        closed = _is_closed(options, spec)
        if options.num_users is None:
            options.num_users = spec.load.concurrency if closed else processes
        if options.spawn_rate is None:
            options.spawn_rate = min(MOST_SPAWN_PER_S * processes, float(options.num_users))
        self._duration_s, options.run_time = options.run_time, None
        if spec.load.stages is not None and not closed and not options.rate:
            shape = StageShape(lambda: self.over, lambda: self._environment.runner)
            shape.runner = self._environment.runner
            self._environment.shape_class = shape

    # ------------------------------------------------------------------ one run

    def _test_start(self, **_: Any) -> None:
        self.over, self._concluding = False, None
        try:
            self._prepare()
        except BenchError as error:
            self._refuse(error)

    def _prepare(self) -> None:
        environment, options = self._environment, self._options
        for name, value in self._given.items():  # a page may send an empty field
            setattr(options, name, getattr(options, name) or value)
        if environment.host is None:
            raise UsageError("no server: give --host http://server:30000")
        duration = options.run_time or self._duration_s
        web_ui = environment.web_ui
        if web_ui is not None and options.run_time:
            gevent.spawn_later(0.1, web_ui._cancel_run_time_timer)
        given = settings(options, environment.host, closed=_is_closed(options, _spec(options)), duration_s=duration)
        kind = MasterRun if isinstance(environment.runner, MasterRunner) else LocalRun
        self._run = kind(environment, given, reach(options, environment.host), self._plan_over)
        self._run.prepare(options.num_users)

    def _refuse(self, error: BenchError) -> None:
        """No run: say why and leave, before a user starts. This greenlet is Locust's start, so it ends here."""
        log.error("hicache: %s", error)
        self._environment.process_exit_code = error.exit_code
        gevent.spawn(self._leave)
        Event().wait()

    def _plan_over(self) -> None:
        self.over = True
        if not isinstance(self._environment.shape_class, StageShape):
            gevent.spawn(self._leave)  # a shape ends its test itself

    def _leave(self) -> None:
        environment, options = self._environment, self._options
        if options.headless:
            environment.runner.quit()
            return
        environment.runner.stop()
        if options.autostart and options.autoquit != -1:
            gevent.sleep(options.autoquit)
            environment.runner.quit()
            environment.web_ui.stop()

    def _conclude(self) -> None:
        """Drain, collect every row, settle and seal; before Locust stops the users. Later callers wait."""
        if self._concluding is not None:
            self._concluding.wait()
            return
        self._concluding, run = Event(), self._run
        try:
            sealed = None if run is None else run.conclude()
        except BenchError as error:
            log.error("hicache: %s", error)
            self._environment.process_exit_code = error.exit_code
        else:
            self._tell(sealed)
        finally:
            if run is not None:
                self._last_live = run.live
            self._run = None
            self._concluding.set()

    def _tell(self, sealed: dict[str, Any] | None) -> None:
        if sealed is None:
            return
        if self._options.headless:
            print(f"\n{sealed['text']}\n", flush=True)
        log.info("hicache: run directory: %s", sealed["path"])


def _defaults(options: Namespace, user_class: Any) -> None:
    """What the user class says, where the command line says nothing; shown on the start page, too."""
    for name in CLASS_OPTIONS:
        value = getattr(user_class, name, None)
        if not getattr(options, name) and value is not None:
            setattr(options, name, str(value))


def _spec(options: Namespace) -> WorkloadSpec:
    if not options.workload:
        raise UsageError("no workload: give --workload FILE or set `workload` in the user class")
    return load_spec(Path(options.workload))


def _is_closed(options: Namespace, spec: WorkloadSpec) -> bool:
    return spec.load.concurrency is not None and not options.rate


def attach(environment: Any, **_: Any) -> None:
    """For `events.init`: gives the environment its `hicache`. A bad option ends the process with exit code 2."""
    from hicache_bench.locust_user.user import HiCacheUser

    ours = [found for found in environment.user_classes if issubclass(found, HiCacheUser)]
    if not ours:
        return
    try:
        if len(ours) > 1:
            raise UsageError(f"one HiCacheUser class a test, not {len(ours)} "
                             f"({', '.join(found.__name__ for found in ours)}); name one on the command line")
        if isinstance(environment.runner, WorkerRunner):
            environment.hicache = WorkerSide(environment)
        elif isinstance(environment.runner, LocalRunner | MasterRunner):
            environment.hicache = Conductor(environment, ours[0])
    except BenchError as error:
        log.error("hicache: %s", error)
        sys.exit(error.exit_code)
