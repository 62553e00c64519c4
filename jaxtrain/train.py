"""Train a model: the one loop, and the only file that knows all the others.

`train` makes the parts of a run, and `Loop` is what they do together. Where the story goes on: what a config means in
check.py, its objects and programs in experiment.py, the step in step.py, the lines it writes in reporting.py.
"""

import contextlib
import dataclasses
import logging
import time
from collections import deque
from pathlib import Path
from typing import Any

import jax

from jaxtrain import compiling, init_from, profiling, resume, session, sharding
from jaxtrain.assembly import assemble
from jaxtrain.callbacks import Callbacks
from jaxtrain.check import checked
from jaxtrain.checkpoint import Checkpoints
from jaxtrain.config import parse
from jaxtrain.data.prefetch import DevicePrefetch
from jaxtrain.distributed import nodes
from jaxtrain.distributed.agreement import require_same
from jaxtrain.distributed.join import joined
from jaxtrain.evaluate import Evaluation, Evaluator
from jaxtrain.experiment import Experiment
from jaxtrain.nonfinite import raise_if_halted
from jaxtrain.pace import Pace
from jaxtrain.preemption import Signals
from jaxtrain.reporting import Reporter, open_writers
from jaxtrain.result import Result
from jaxtrain.step import TrainState, eval_params
from jaxtrain.timeline import Timeline
from jaxtrain.writers.jsonl import read_lines

_logger = logging.getLogger(__name__)
_MAX_STEPS_IN_FLIGHT = 2


def train(
    config: Any,
    workdir: str | Path | None = None,
    *,
    fresh: bool = False,
    allow_drift: bool = False,
    signals: Signals | None = None,
) -> Result:
    """Train what `config` describes until its duration is over; resume where the workdir's checkpoints end.

    config: a ConfigDict, a Config or nested dicts.   workdir: by default runs/<name>.
    fresh: set aside what the workdir holds, and begin.   allow_drift: resume although the config is another run's.
    signals: the program's own, if it installed them before importing JAX.
    Raises a subclass of JaxtrainError (errors.py) for every end that has a name.
    """
    # Called from Python, the process may be hours old; started by the command, its age is Python and the imports.
    timeline = Timeline(age_secs=0.0) if signals is None else Timeline()
    timeline.mark("starting Python")
    parsed = parse(config)
    with contextlib.ExitStack() as stack:
        crew = stack.enter_context(joined(parsed.config, workdir))
        config = checked(parsed)
        here = stack.enter_context(session.opened(config, workdir, signals, crew))
        stack.enter_context(profiling.explained_exhaustion(here.workdir.path / "profile", config))
        compiling.enable_cache(config.compile_cache)
        devices = nodes.arranged(jax.devices(), crew.members)
        experiment = assemble(config, devices=devices, autotune_dir=str(here.workdir.autotune_dir))
        _logger.info("%s", nodes.describe(experiment.mesh, crew.members))
        timeline.mark("data and model")
        if fresh:
            init_from.check(config.init_from, experiment.abstract_state, here.workdir.path)
            if aside := crew.from_first("a fresh workdir", lambda: str(here.workdir.set_aside() or "")):
                _logger.warning("--fresh: what the workdir held is now in %s", aside)
        checkpoints = stack.enter_context(contextlib.closing(experiment.open_checkpoints(here.workdir)))
        launch = resume.describe_launch(experiment)
        require_same(crew, "launch", launch, resume.SAME_IN_ALL_PROCESSES)
        start = resume.start_from(crew.from_first("the start", lambda: resume.newest(checkpoints)))
        allow = allow_drift or not start.step
        crew.from_first("drift", lambda: resume.refuse_drift(here.workdir, config, launch, allow))
        pace = Pace(
            experiment.num_steps,
            experiment.max_secs,
            step=start.step,
            secs=start.secs,
            previous_secs=start.previous_secs,
            clock=crew.clock if experiment.depends_on_time else time.monotonic,
        )
        if crew.from_first("the end", lambda: resume.is_complete(here.workdir, config, pace, experiment.evaluations)):
            _logger.info("%s is finished at step %d: nothing to do", here.workdir.path, start.step)
            if (here.workdir.read_status() or {}).get("state") != "finished":
                here.workdir.write_status("finished", start.step)  # it was killed before it could say so
            return _result(here, "finished", start.step, None)

        state = init_from.state_at(experiment, checkpoints, start.step)
        timeline.mark("restoring the state" if start.step else "making the state")
        callbacks = Callbacks(experiment, here.workdir.path, state)
        here.begin(config, launch, start.step)
        batches = DevicePrefetch(experiment.loader(start.position, start.num_bad), experiment.place)
        stack.enter_context(contextlib.closing(batches))
        loop = Loop(experiment, checkpoints, here, start, pace, state, batches, callbacks, timeline)
        status = stack.enter_context(contextlib.closing(loop)).run()
        here.end(status, loop.reason)
        return _result(here, status, pace.step, loop.state)


def _result(here: session.Session, status: str, step: int, state: TrainState | None) -> Result:
    return Result(status, step, state, list(read_lines(here.workdir.metrics_path)), here.workdir.path)


class Loop:
    """A run under way: its parts, and the steps they make together."""

    def __init__(
        self,
        experiment: Experiment,
        checkpoints: Checkpoints,
        here: session.Session,
        start: resume.Start,
        pace: Pace,
        state: TrainState,
        batches: DevicePrefetch,
        callbacks: Callbacks,
        timeline: Timeline,
    ):
        config = experiment.config
        self.experiment, self.checkpoints, self.here, self.crew = experiment, checkpoints, here, here.crew
        self.pace, self.state, self.batches = pace, state, batches
        self.callbacks, self.timeline = callbacks, timeline
        self.position, self.num_bad = start.position, start.num_bad
        self.saved_step = start.step
        self.is_first_step = True
        self.profiler = profiling.Profiler(here.workdir.path / "profile", config.profile, here.signals)

        self.train_step = experiment.compile_train_step()
        self.drain = experiment.compile_drain()
        self.evaluator = Evaluator(experiment.compile_eval_step)
        for evaluation in experiment.evaluations:
            self.evaluator.check(evaluation, eval_params(state), state.model_state)
        callbacks.run.eval_metrics = self.evaluator.metrics
        timeline.mark("compiling")
        flops = experiment.step_flops()
        _logger.info("a step takes %s\na step needs %s", flops, profiling.describe_memory(self.train_step))

        _logger.info("%s", sharding.describe(state, experiment.sharded_by))
        _logger.info("%s", experiment.optimizer.groups.describe(state.params))
        self.reporter = Reporter(
            here.workdir.metrics_path,
            open_writers(config, here.workdir, pace),
            batch_size=config.batch_size,
            tokens_per_example=experiment.tokens_per_example,
            start_step=start.step,
            on_log=self.callbacks.on_log,
            peak_step_secs=flops.secs_at_peak(list(experiment.mesh.devices.flat), config.precision.compute),
            writes=here.workdir.is_first,
        )
        self.callbacks.run.write_text = self.reporter.write_text
        self.callbacks.run.pause = self.reporter.timer.pause
        resume.tell_lost_lines(start, self.reporter.has_line)
        if self.reporter.has_line("train", start.step):  # a line made after this step was saved holds its interval
            self.state = dataclasses.replace(state, interval=self.drain(state.interval, state.counters)[0])

    def run(self) -> str:
        """Make steps until the run is over or has to stop. Returns its status."""
        self.here.signals.ready()
        try:
            self.callbacks.on_start()
            if self.pace.step:
                self.evaluate()  # what the launch before did not get to
            self.make_steps()
            return self.stop() if self.crew.is_interrupted else self.finish()
        except BaseException as error:
            self.callbacks.on_error(error)
            raise

    def make_steps(self) -> None:
        in_flight: deque[Any] = deque()
        while not (self.pace.is_over or self.should_stop()):
            self.profiler.before_step(self.pace.step + 1, self.state.step)
            item = self.batches.next(self.should_stop)
            if item is None or not self.crew.begin_turn(is_step=True):
                return
            batch, loaded = item
            self.callbacks.on_batch(self.pace.step + 1, batch)
            self.state, metrics = self.train_step(self.state, batch)
            in_flight.append(metrics["loss"].total)
            if len(in_flight) > _MAX_STEPS_IN_FLIGHT:
                in_flight.popleft().block_until_ready()
            step = self.count_step(loaded.num_bad)
            if self.pace.due(self.experiment.log_every):
                self.log()
            if self.pace.due(self.experiment.checkpoint_every):
                self.save()
            self.evaluate()
            self.callbacks.on_step(step)

    def count_step(self, num_bad: int) -> int:
        self.position += self.experiment.config.batch_size
        self.num_bad += num_bad
        step = self.pace.advance()
        self.callbacks.run.state = self.state
        self.here.workdir.progress(step)
        self.reporter.timer.count_step(self.batches.wait_secs)
        if self.is_first_step:
            self.is_first_step = False
            self.state.step.block_until_ready()
            self.timeline.mark("the first step")
            _logger.info("%s", self.timeline)
            self.here.workdir.write_status("running", step)
        committed = self.checkpoints.poll()  # raises if a save failed in the background
        if committed is not None:
            self.callbacks.on_checkpoint(committed)
        return step

    def log(self) -> None:
        """Keep the interval on the device, write the one kept before, and begin a new one."""
        full = self.state.interval
        empty, counters = self.drain(full, self.state.counters)
        self.state = dataclasses.replace(self.state, interval=empty)
        scalars = self.callbacks.run.scalars
        self.reporter.keep(self.pace.step, full, counters, self.position, self.num_bad, scalars)
        raise_if_halted(self.reporter.last_counters, self.state)

    def save(self) -> None:
        """Save the state, unless it is saved or nothing may be trusted any more. Lines up to here are on disk first."""
        self.reporter.flush()
        raise_if_halted(self.state.counters, self.state)
        if self.saved_step == self.pace.step:
            return
        info = resume.Start(
            step=self.pace.step,
            position=self.position,
            secs=self.pace.secs,
            previous_secs=self.pace.previous_secs,
            num_bad=self.num_bad,
            unwritten=self.reporter.unwritten,
        )
        self.checkpoints.save(self.pace.step, self.state, dataclasses.asdict(info))
        self.saved_step = self.pace.step

    def evaluate(self) -> None:
        """Run each evaluation that is due and has no line yet, in the order of the config."""
        for evaluation in self.experiment.evaluations:
            if self.pace.due(evaluation.every) and not self.reporter.has_line(evaluation.name, self.pace.step):
                self.evaluate_one(evaluation)

    def evaluate_one(self, evaluation: Evaluation) -> None:
        self.reporter.flush()
        raise_if_halted(self.reporter.last_counters, self.state)
        started = time.monotonic()
        params, model_state = eval_params(self.state), self.state.model_state
        scalars = self.evaluator.run(evaluation, params, model_state, self.is_interrupted, self.begin_evaluation_step)
        self.reporter.timer.pause(time.monotonic() - started)
        if scalars is None:
            return  # interrupted; the next launch evaluates
        self.reporter.write_eval(self.pace.step, evaluation.name, scalars)
        self.callbacks.on_eval(self.pace.step, evaluation.name, scalars)

    def finish(self) -> str:
        """Make the last line, checkpoint and evaluations, as far as the last step did not."""
        if not self.reporter.has_line("train", self.pace.step):
            self.log()
        self.save()
        for evaluation in self.experiment.evaluations:
            if not self.reporter.has_line(evaluation.name, self.pace.step):
                self.evaluate_one(evaluation)
        if self.is_interrupted():
            return self.stop()
        self.await_checkpoint()
        self.callbacks.on_end()
        return "finished"

    def stop(self) -> str:
        """Save where the run is, so that the same command goes on from here."""
        _logger.warning("stopping at step %d: %s", self.pace.step, self.reason)
        self.save()
        self.await_checkpoint()
        return "preempted"

    def await_checkpoint(self) -> None:
        self.checkpoints.wait()
        while (committed := self.checkpoints.poll()) is not None:
            self.callbacks.on_checkpoint(committed)

    def should_stop(self) -> bool:
        return self.crew.should_stop(self.here.signals.requested, self.callbacks.run.stop_reason)

    def is_interrupted(self) -> bool:
        return self.should_stop() and self.crew.is_interrupted

    def begin_evaluation_step(self) -> bool:
        return self.crew.begin_turn(is_step=False)

    @property
    def reason(self) -> str:
        return self.crew.stop.reason if self.crew.stop else ""

    def close(self) -> None:
        self.profiler.close()
        self.reporter.close()
