"""Rounds of chaos: one random action (or a small burst of them), then everything is checked.

Each round has dice of its own, thrown from the seed and its number: what is tried depends on nothing else. Whom it
meets depends on who is there, and that, now and then, on timing.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from math import inf

from chaos.cast import BLOCK, CLAIM_TIMEOUT, DEATH_SLACK, GIB, MARKER, MIB, OUTSIDE, Actor
from chaos.checks import Checks
from chaos.oracle import Fault, Oracle
from chaos.stage import Stuck
from chaos.truth import Job, Truth

EPOCH = 40
"""Rounds until everybody has to go, and nothing may be left."""
LADDERS = ("trim,term,kill", "trim,term,kill", "trim,term,kill", "trim,kill", "term,kill", "kill")
SOFT = ("trim,suspend,term,kill", "suspend,term,kill", "trim,suspend,kill", "trim,hook,suspend,term,kill")
HOOKED = ("trim,hook,term,kill", "hook,kill", "trim,hook,term,kill")


class Chaos(Checks):
    """A node under siege."""

    # ---- life --------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.stage.start_daemon()
        gpus = self.stage.api("GET", "/v1/status")["gpus"]
        self.truth = Truth({gpu["index"]: gpu["capacity"] for gpu in gpus}, longest_grace=CLAIM_TIMEOUT - 2.0)
        self.uuids = {gpu["index"]: gpu["uuid"] for gpu in gpus}
        self.oracle = Oracle(self.truth)
        self.begin_helping()
        self._register(MARKER, {"request": "none", "limit": "1Gi"}, [0])
        self._learn_overhead()

    def _learn_overhead(self) -> None:
        """A first context is charged by a guess. Let it be measured, and that be written down."""
        self._register("first", {"request": "1Gi", "limit": "2Gi"}, [0])
        actor = self._program("first", [0])
        self._open(actor, 0)
        self._answers()
        self._until(lambda: any(one.event == "overhead" for one in self.stage.records), "a context to be measured")
        self._register("second", {"request": "none", "limit": "1Gi"}, [0])
        self._quit(actor)
        self._answers()
        self._sweep()
        self._end_job("second")
        self._sync()
        self.seen = len(self.stage.records)
        self._leave_nothing()

    def play(self, rounds: int, until: float = inf) -> bool:
        """True: all of them, and nothing at fault."""
        for number in range(1, rounds + 1):
            if time.monotonic() > until:
                break
            self.round = number
            self.dice = random.Random(f"{self.seed}/{number}")
            self.round_began = time.monotonic()
            try:
                what = self._act()
                self.history.append(f"{number}: {what}  ({time.monotonic() - self.round_began:.2f} s)")
                self.say(self.history[-1])
                self._check()
                if number % EPOCH == 0 or number == rounds:
                    self._end_epoch()
            except (Stuck, AssertionError, OSError) as error:
                self.faults.append(Fault("stuck", f"{error!r}; {self.stage.whereabouts()}"))
            if self.faults:
                return False
        return True

    # ---- actions -----------------------------------------------------------------------------------

    def _act(self) -> str:
        dice = self.dice
        actions: list[tuple[int, Callable[[], str]]] = [
            (self._need_of_jobs(), self._start_job),
            (4, self._one_more),
            (10, self._borrow),
            (16, self._claim),
            (45, self._squeeze),
            (5, self._release),
            (9, self._keep_cache),
            (6, self._term_mode),
            (4, self._stop_or_go_on),
            (3, self._fork),
            (2, self._exec),
            (4, self._die),
            (3, self._finish),
            (5, self._outsider),
            (3, self._restart),
            (4, self._change_budget),
            (2, self._checkpoint),
            (5, self._burst),
            (3, self._kill_helper),
            (3, self._suspend_by_hand),
        ]
        action = dice.choices([one for _, one in actions], [weight for weight, _ in actions])[0]
        what = action()
        self._answers()
        return what

    def _need_of_jobs(self) -> int:
        """A weight: with few jobs there is little to quarrel about."""
        return (200, 200, 60, 30, 16, 8, 2, 1)[min(7, len(self._of_jobs()))]

    def _of_jobs(self) -> set[str]:
        return {actor.job for actor in self.actors.values() if actor.job}

    def _pick(self, able: list[Actor]) -> Actor | None:
        return self.dice.choice(sorted(able, key=lambda actor: actor.serial)) if able else None

    def _size(self, least: int, most: int) -> int:
        return self.dice.randrange(least, max(least, most) + 1) // BLOCK * BLOCK

    def _free_now(self, gpu: int) -> int:
        """What nobody holds: by the truth."""
        now = time.monotonic()
        used = sum(span.size for span in self.truth.spans if span.gpu == gpu and span.maybe(now))
        return self.truth.capacity[gpu] - used

    def _start_job(self) -> str:
        dice = self.dice
        self.serial += 1
        gpus = [0]
        if len(self.uuids) > 1:
            gpus = dice.choice([[0], [0], [0], [1], [0, 1]])
        name = f"{'abcdefghijklmnopqrstuvwxyz'[self.serial % 26]}{self.serial}"
        request = dice.choice([0, 0, self._size(512 * MIB, 2 * GIB), self._size(2 * GIB, 6 * GIB)])
        limit = dice.choice([request or GIB, *[min(request + self._size(GIB, 14 * GIB), 15 * GIB)] * 4])
        limit = max(limit, request)
        grace = dice.choice([0.0, 0.1, 0.1, 0.3, 0.3, 0.3, 0.8, 0.8, 0.1, 8.0])
        ladder = dice.choice(dice.choice([LADDERS, SOFT, SOFT, HOOKED]))
        priority = dice.choice([-1, 0, 0, 0, 1])
        lend = dice.random() < 0.85
        protected = dice.choice([0.0, 0.0, 0.0, 0.0, 2.0])
        way = dice.choice(["registered"] * 6 + ["alone"] * 3 + ["wrapped"])
        if "suspend" in ladder:
            gpus = gpus if dice.random() < 0.2 else gpus[:1]  # on several it cannot be suspended
            way = "registered"  # we are its wrapper, and have a suspender that tells us what it does
        elif "hook" in ladder:
            way = "registered" if way == "registered" else "wrapped"
        gpus = gpus if way == "registered" else gpus[:1]
        what = f"start {name} ({way}) {request // MIB}..{limit // MIB}Mi on {gpus}, grace {grace}, {ladder}"
        what += f", priority {priority}{'' if lend else ', lends nothing'}{', protected' if protected else ''}"
        fits = all(request <= self.truth.capacity[gpu] - self._requested(gpu) - self._outside(gpu) for gpu in gpus)
        amounts: dict[str, object] = {"request": f"{request // MIB}Mi" if request else "none"}
        amounts["limit"] = f"{limit // MIB}Mi"
        if way == "registered":
            more = {"priority": priority, "grace": grace, "on_reclaim": ladder, "lend": lend, "min_run_time": protected}
            admitted = self._register(name, amounts, gpus, **more)
            self._expect_admission(name, admitted, fits, gpus)
            if not admitted:
                return f"{what}: refused"
            actor = self._program(name, gpus)
            self._open_all(actor)
            self._help(name)
            return what
        settings = {"GPUSHARE_GRACE": f"{grace}s", "GPUSHARE_PRIORITY": str(priority), "GPUSHARE_ON_RECLAIM": ladder}
        settings |= {"GPUSHARE_MIN_RUN_TIME": f"{protected}s", "GPUSHARE_NAME": name}
        settings |= {"GPUSHARE_REQUEST": str(amounts["request"]), "GPUSHARE_LIMIT": str(amounts["limit"])}
        env = self.stage.program_env() | settings | {"CUDA_VISIBLE_DEVICES": self.uuids[gpus[0]]}
        if way == "wrapped":
            del env["LD_PRELOAD"]
            options = ["--no-lend"] if not lend else []
            env |= self.hook_options(name) if "hook" in ladder else {}
            program = self.stage.spawn(name, self.stage.run_line(*options), env, wrapped=True)
            self._expect_admission(name, program.alive, fits, gpus)
        else:
            lend = True
            program = self.stage.spawn(name, [str(self.stage.puppet)], env)
        if not program.alive:
            return f"{what}: refused"
        bounds = {gpus[0]: (request, min(limit, self.truth.capacity[gpus[0]]))}
        job = Job(name, bounds, priority, grace, tuple(ladder.split(",")), lend, protected, time.monotonic())
        self.truth.jobs[name] = job
        actor = self._take_in(program, name, gpus)
        self._open_all(actor)
        self._answers()
        if way == "alone" and actor.serial in self.actors and not actor.contexts:
            # Not admitted, or no room for a context: then it is no job.
            self._quit(actor)
            self.refused.add(name)
            return f"{what}: no context"
        job.since = time.monotonic()
        return what

    def _requested(self, gpu: int) -> int:
        return sum(job.bounds[gpu][0] for job in self.truth.jobs.values() if gpu in job.bounds)

    def _outside(self, gpu: int) -> int:
        return self.truth.unmanaged(gpu, time.monotonic())[1]

    def _expect_admission(self, name: str, admitted: bool, fits: bool, gpus: list[int]) -> None:
        if time.monotonic() - self.outside_changed < 1.5 or any(self._outside(gpu) for gpu in gpus):
            return  # what is outside is known to the daemon from its last sample
        if admitted != fits:
            self._fault(
                "admission", f"{name} {'admitted' if admitted else 'refused'}: requests do{'' if fits else ' not'} fit"
            )

    def _open_all(self, actor: Actor) -> None:
        for gpu in actor.gpus:
            self._open(actor, gpu)

    def _one_more(self) -> str:
        names = sorted(name for name in self.ids if name != MARKER and self._of(name))
        if not names:
            return "no job for one more process"
        name = self.dice.choice(names)
        if len(self._of(name)) >= 3:
            return f"{name} has enough processes"
        actor = self._program(name, list(self._of(name)[0].gpus))
        self._open_all(actor)
        return f"one more process of {name}"

    def _borrow(self) -> str:
        actor = self._pick(self._able())
        if actor is None or actor.job is None:
            return "nobody to borrow"
        gpu = self.dice.choice(sorted(actor.contexts))
        free = self._free_now(gpu)
        size = self._size(BLOCK, int(free * self.dice.choice([0.3, 0.9, 1.0, 1.3])) if free > BLOCK else GIB)
        self._alloc(actor, size, gpu)
        return f"{actor.job} takes {size // MIB} MiB of GPU {gpu} ({free // MIB} free)"

    def _headroom(self, actor: Actor, gpu: int) -> int:
        job = self.truth.jobs[actor.job or ""]
        return job.bounds[gpu][0] - self.truth.usage(job.name, gpu, time.monotonic())[1]

    def _owners(self) -> list[tuple[Actor, int]]:
        found = [(actor, gpu) for actor in self._able() for gpu in sorted(actor.contexts)]
        return [(actor, gpu) for actor, gpu in found if self._headroom(actor, gpu) >= 64 * MIB]

    def _claim(self) -> str:
        owners = self._owners()
        if not owners:
            return self._start_job()
        actor, gpu = self.dice.choice(owners)
        headroom = self._headroom(actor, gpu)
        size = self._size(BLOCK, headroom) if self.dice.random() < 0.5 else headroom // BLOCK * BLOCK
        if self._is_hopeless(actor, gpu, size) and self.dice.random() < 0.6:
            return self._outsider_leaves()
        disturb = self.dice.choice([*[None] * 6, *self._disturbances()])
        self._alloc(actor, size, gpu)
        what = f"{actor.job} claims {size // MIB} MiB of GPU {gpu} ({self._free_now(gpu) // MIB} free)"
        if disturb is None:
            return what
        delay = self.dice.choice([0.0, 0.02, 0.1, 0.4, 1.1])
        self.stage.rest(delay)
        return f"{what}; after {delay} s {disturb(actor)}"

    def _is_hopeless(self, actor: Actor, gpu: int, size: int) -> bool:
        """Nothing but time will meet it: memory outside, or loans that may not be touched."""
        now = time.monotonic()
        lenders = [
            job
            for job in self.truth.jobs.values()
            if gpu in job.bounds and job.name != actor.job and job.borrows_on(gpu) and now - job.since > job.protected
        ]
        loans = sum(self.truth.loan(job.name, gpu, now)[0] for job in lenders)
        kept = self.truth.headroom_kept(gpu, now, {actor.job or "": size})
        return size + kept > self._free_now(gpu) + loans

    def _disturbances(self) -> list[Callable[[Actor], str]]:
        return [
            self._kill_daemon_meanwhile,
            self._kill_claimant,
            self._kill_somebody_else,
            self._free_elsewhere,
            self._another_claim,
            self._loan_meanwhile,
            self._pause_claimant,
            self._outsider_meanwhile,
            self._pause_daemon,
        ]

    def _kill_daemon_meanwhile(self, _: Actor) -> str:
        return self._restart()

    def _kill_claimant(self, actor: Actor) -> str:
        self.stage.kill(actor.program)
        return "it is killed"

    def _others(self, actor: Actor) -> list[Actor]:
        return [other for other in self._able() if other.job != actor.job and other.serial in self.actors]

    def _kill_somebody_else(self, actor: Actor) -> str:
        other = self._pick(self._others(actor))
        if other is None:
            return "nobody else is there"
        self.stage.kill(other.program)
        return f"{other.job} is killed"

    def _free_elsewhere(self, actor: Actor) -> str:
        other = self._pick([one for one in self._others(actor) if one.stack])
        if other is None:
            return "nobody has anything to free"
        self._free(other, self.dice.randrange(1, 4))
        return f"{other.job} frees"

    def _another_claim(self, actor: Actor) -> str:
        owners = [(other, gpu) for other, gpu in self._owners() if other.job != actor.job and not other.program.answers]
        if not owners:
            return "nobody else may claim"
        other, gpu = self.dice.choice(owners)
        size = self._size(BLOCK, self._headroom(other, gpu))
        if self._is_hopeless(other, gpu, size):
            return "another's claim would be hopeless"
        self._alloc(other, size, gpu)
        return f"{other.job} claims {size // MIB} MiB"

    def _loan_meanwhile(self, actor: Actor) -> str:
        other = self._pick(self._others(actor))
        if other is None:
            return "nobody else is there"
        self._alloc(other, self._size(BLOCK, 4 * GIB))
        return f"{other.job} wants a loan"

    def _pause_claimant(self, actor: Actor) -> str:
        self.stage.signal(actor.program, signal.SIGSTOP)
        self.stage.rest(0.3)
        if actor.serial in self.actors:
            self.stage.signal(actor.program, signal.SIGCONT)
        return "it is paused for a moment"

    def _outsider_meanwhile(self, _: Actor) -> str:
        return self._outsider()

    def _pause_daemon(self, _: Actor) -> str:
        assert self.stage.daemon is not None
        began = time.monotonic()
        self.stage.daemon.send_signal(signal.SIGSTOP)
        self.stage.rest(0.3)
        self.stage.daemon.send_signal(signal.SIGCONT)
        self.down.append((began, time.monotonic() + 0.2))
        return "the daemon is paused for a moment"

    def _squeeze(self) -> str:
        """Those who may borrow all they can get, then an owner wants its own."""
        owners = self._owners()
        if not owners:
            return self._start_job()
        owner, gpu = self.dice.choice(owners)
        others = [other for other in self._others(owner) if gpu in other.contexts]
        self.dice.shuffle(others)
        parts = []
        for place, other in enumerate(others):
            job = self.truth.jobs[other.job or ""]
            room = job.bounds[gpu][1] - self.truth.usage(job.name, gpu, time.monotonic())[1]
            part = self._free_now(gpu) // (2 if place < 2 and len(others) > place + 1 else 1)
            size = min(part, room) // BLOCK * BLOCK
            if size < 64 * MIB or self.truth.headroom_kept(gpu, time.monotonic(), {}):
                continue
            if self.dice.random() < 0.4:
                if other.current != gpu:
                    self._open(other, gpu)
                    self._answers()
                if other.current == gpu and other.serial in self.actors:
                    self._cache(other, size)
                    parts.append(f"{other.job} keeps {size // MIB}")
            else:
                for _ in range(pieces := self.dice.choice([1, 2, 4])):
                    self._alloc(other, size // pieces, gpu)
                parts.append(f"{other.job} takes {size // MIB}")
            self._answers()
        self._pools()
        if owner.serial not in self.actors or owner.stopped:
            return f"{', '.join(parts)}; the owner has gone"
        return "; ".join([*parts, self._claim_of(owner, gpu)])

    def _claim_of(self, owner: Actor, gpu: int) -> str:
        headroom = self._headroom(owner, gpu)
        if headroom < BLOCK or self._is_hopeless(owner, gpu, headroom):
            return "nothing to claim"
        size = headroom // BLOCK * BLOCK if self.dice.random() < 0.7 else self._size(BLOCK, headroom)
        self._alloc(owner, size, gpu)
        disturb = self.dice.choice([*[None] * 12, *self._disturbances()])
        what = f"{owner.job} claims {size // MIB} MiB of GPU {gpu}"
        if disturb is not None:
            delay = self.dice.choice([0.0, 0.02, 0.1, 0.4])
            self.stage.rest(delay)
            what += f"; after {delay} s {disturb(owner)}"
        return what

    def _release(self) -> str:
        actor = self._pick([one for one in self._able() if one.stack])
        if actor is None:
            return "nobody has anything to free"
        count = self.dice.randrange(1, len(actor.stack) + 1)
        self._free(actor, count)
        return f"{actor.job} frees {count} of {len(actor.stack)}"

    def _keep_cache(self) -> str:
        """Only of what is free: a pool that grows is no claim here."""
        able = [one for one in self._able() if self.truth.jobs[one.job or ""].borrows_on(one.current)]
        actor = self._pick(able)
        if actor is None:
            return "nobody to cache"
        gpu = actor.current
        job = self.truth.jobs[actor.job or ""]
        room = min(self._free_now(gpu), job.bounds[gpu][1] - self.truth.usage(job.name, gpu, time.monotonic())[1])
        room -= self.truth.headroom_kept(gpu, time.monotonic(), {job.name: room})
        if room < 256 * MIB:
            return "no room for a cache"
        size = self._size(128 * MIB, room)
        self._cache(actor, size)
        return f"{actor.job} keeps {size // MIB} MiB in its pool"

    def _term_mode(self) -> str:
        actor = self._pick(self._able())
        if actor is None:
            return "nobody to tell about SIGTERM"
        mode = self.dice.choice(["ignore", "ignore", "die", "tell 1", "tell 100"])
        self.stage.order(actor.program, f"term {mode}")
        return f"{actor.job}: on SIGTERM {mode}"

    def _stop_or_go_on(self) -> str:
        stopped = [actor for actor in self.actors.values() if actor.stopped]
        if stopped and self.dice.random() < 0.6:
            self._go_on(self.dice.choice(sorted(stopped, key=lambda one: one.serial)))
            return "a stopped program goes on"
        actor = self._pick(self._able())
        if actor is None:
            return "nobody to stop"
        self._stop(actor)
        self.counts["stopped"] += 1
        return f"{actor.job} stops itself"

    def _fork(self) -> str:
        actor = self._pick(self._able())
        if actor is None:
            return "nobody to fork"
        lasting = self.dice.choice([10, 500, 3000])
        self.stage.order(actor.program, f"fork {lasting}")
        self.counts["forks"] += 1
        if self.dice.random() < 0.3:
            self._answers()
            self.stage.kill(actor.program)
            return f"{actor.job} forks, and is killed while its child lives on"
        return f"{actor.job} forks"

    def _exec(self) -> str:
        actor = self._pick(self._able())
        if actor is None:
            return "nobody to exec"
        sent = time.monotonic()

        def fresh(_: list[str]) -> None:
            for span in actor.spans():
                self._down(span, sent, time.monotonic() + DEATH_SLACK)
            actor.contexts, actor.stack, actor.caches, actor.current = {}, [], {}, -1

        self.stage.order(actor.program, "exec", fresh)
        self._answers()
        if actor.serial not in self.actors or actor.contexts:
            return f"{actor.job} does not come through exec"
        self.counts["execs"] += 1
        # Of a slow driver's memory before exec and after it, under one process id, NVML's lists tell the larger only.
        self.stage.rest(self.stage.teardown / 1000)
        if self.dice.random() < 0.8:
            self._open_all(actor)
            if not actor.program.wrapped and actor.job not in self.bodies and actor.job in self.truth.jobs:
                # It has no wrapper whose job could go on: a job of its own has ended, and one of the same name begins,
                # with the budget of its environment.
                job = self.truth.jobs[actor.job]
                job.since = time.monotonic()
                job.bounds, job.priority = job.at_first
            return f"{actor.job} becomes another program"
        self._quit(actor)
        return f"{actor.job} becomes another program, and ends"

    def _die(self) -> str:
        actor = self._pick([one for one in self.actors.values() if one.job])
        if actor is None:
            return "nobody to kill"
        self.stage.kill(actor.program)
        if self.dice.random() < 0.2 and actor.program.wrapped:
            actor.program.child.kill()
            return f"{actor.job} and its wrapper are killed"
        return f"{actor.job}[{actor.program.pid}] is killed"

    def _finish(self) -> str:
        names = sorted({actor.job for actor in self.actors.values() if actor.job})
        if not names:
            return "no job to finish"
        name = self.dice.choice(names)
        for actor in self._of(name):
            if actor.stopped:
                self._go_on(actor)
            self._quit(actor)
        return f"{name} finishes"

    def _outsider(self) -> str:
        outside = self._of(None)
        if outside and self.dice.random() < 0.6:
            return self._outsider_leaves()
        gpu = self.dice.choice(sorted(self.uuids))
        if outside:
            actor = outside[0]
            gpu = actor.current if actor.current in self.uuids else gpu
        else:
            program = self.stage.spawn(OUTSIDE, [str(self.stage.puppet)], self.stage.outsider_env())
            actor = self._take_in(program, None, sorted(self.uuids))
        size = self._size(256 * MIB, self.dice.choice([1, 2, 6]) * GIB)
        self._alloc(actor, size, gpu)
        self.outside_changed = time.monotonic()
        self.counts["outsiders"] += 1
        return f"a program outside takes {size // MIB} MiB of GPU {gpu}"

    def _outsider_leaves(self) -> str:
        for actor in self._of(None):
            self.stage.kill(actor.program)
            self.outside_changed = time.monotonic()
            return "the program outside is killed"
        return "nobody is outside"

    def _restart(self) -> str:
        number = self.dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        began = time.monotonic()
        self.stage.stop_daemon(number)
        self._forget_what_comes_back(began)
        self.stage.start_daemon()
        self._register_again()
        self.down.append((began, time.monotonic()))
        self.counts["restarts"] += 1
        return f"the daemon gets {number.name} and is started again"

    def _forget_what_comes_back(self, began: float) -> None:
        """The next daemon cannot know that what the driver still holds was a program's that has ended."""
        slow = self.stage.teardown / 1000
        for span in self.truth.spans:
            if began - slow - DEATH_SLACK < span.down_by < inf and span.job is not None:
                span.down_by += slow

    def _register_again(self) -> None:
        """As wrappers do."""
        for job in self.stage.api("GET", "/v1/jobs")["jobs"]:
            if job["name"] not in self.truth.jobs and job["name"] not in self.refused:
                # It was killed before it had written down that this job is over. A wrapper ends, we go on.
                self.stage.call("DELETE", f"/v1/jobs/{job['id']}", {})
                self.counts["ended twice"] += 1
        for name, id in self.ids.items():
            status, answer = self.stage.call("POST", "/v1/jobs", {**self.bodies[name], "job": id})
            if status != 200:
                self._fault("forgotten", f"job {name} is not known to the new daemon: {status} {answer}")

    def _change_budget(self) -> str:
        names = sorted(name for name in self.truth.jobs if name != MARKER and self._of(name))
        if not names:
            return "no job to change"
        name = self.dice.choice(names)
        job = self.truth.jobs[name]
        gpu = min(job.bounds)
        request, limit = job.bounds[gpu]
        change: dict[str, object]
        match self.dice.choice(["priority", "request", "limit"]):
            case "priority":
                change = {"priority": self.dice.randrange(-1, 2)}
            case "request":
                change = {"request": f"{self._size(BLOCK, max(BLOCK, limit - GIB)) // MIB}Mi"}
            case _:
                change = {"limit": f"{(request + self._size(GIB, 8 * GIB)) // MIB}Mi"}
        status, answer = self.stage.call("PATCH", f"/v1/jobs/{name}", change)
        job.changed = time.monotonic()
        if status == 200:
            after = answer["after"]
            job.priority = after["priority"]
            job.bounds = {self.stage.index[one["uuid"]]: (one["request"], one["limit"]) for one in after["gpus"]}
            if name in self.bodies:
                self.bodies[name] |= {key: value for key, value in change.items()}
        elif status not in (400, 404, 409):
            self._fault("change", f"{name}: {change}: {status} {answer}")
        return f"{name}: {change} -> {status}"

    def _checkpoint(self) -> str:
        names = sorted(name for name in self.truth.jobs if name != MARKER and self._of(name))
        if not names:
            return "no job to save"
        name = self.dice.choice(names)
        self.stage.call("POST", f"/v1/jobs/{name}/checkpointed")
        self.truth.jobs[name].saved = time.monotonic()
        return f"{name} says that its work is saved"

    def _burst(self) -> str:
        """Several at once."""
        able = self._able()
        self.dice.shuffle(able)
        parts = []
        for actor in able[:4]:
            gpu = actor.current
            headroom = self._headroom(actor, gpu)
            kind = self.dice.choice(["take", "free", "claim"])
            if kind == "free" and actor.stack:
                self._free(actor, self.dice.randrange(1, len(actor.stack) + 1))
            elif kind == "claim" and headroom > BLOCK and not self._is_hopeless(actor, gpu, headroom):
                self._alloc(actor, self._size(BLOCK, headroom))
            else:
                kind = "take"
                self._alloc(actor, self._size(BLOCK, 2 * GIB))
            parts.append(f"{actor.job} {kind}s")
        return f"at once: {', '.join(parts)}"
