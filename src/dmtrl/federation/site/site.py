"""Everything that happens at a site: it answers the messages of a study, as far as its policy allows.

The folder of a site holds `policy.toml` (written by the site's staff), `study.toml` and `approval.json` (the study that
they approved), `ledger.jsonl` (what left), `run/` (the prepared problem and checkpoints with dual variables, which
never leave) and `results/` (its model). A `Site` keeps nothing else: a new one in the same folder that receives the
same messages gives the same answers, to the bit.
"""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl import storage
from dmtrl.data.blocks import Blocks
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.masks.site import MaskedSite
from dmtrl.federation.protection.noise.site import SiteReleases
from dmtrl.federation.protection.plain.request_checks import check_folds, check_request
from dmtrl.federation.site import approval
from dmtrl.federation.site.data_check import SiteTable, check_file
from dmtrl.federation.site.ledger import Ledger, numbers_in
from dmtrl.federation.site.policy import Policy, read_policy
from dmtrl.federation.site.rows import ask_worker, blocks_of, coordinates_of, held_out_errors
from dmtrl.federation.study import models, preparation
from dmtrl.federation.study.preparation import are_finite
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol import rounds
from dmtrl.protocol import study as messages
from dmtrl.protocol.codec import ANSWER_NAMES, decode, encode
from dmtrl.protocol.message import Message
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.problem import Strengths
from dmtrl.tables.preparation import Preparation
from dmtrl.worker.worker import Worker

LEDGER, MODEL = "ledger.jsonl", "model.dmtrl"
MOST_REFUSALS = 1000  # lines about refusals in the ledger, for each study
_PRIVATE = "hello", "begin", "release", "finish"  # requests that are answered in private studies
_MASKED = "hello", "share_key", "sum_up", "begin", "publish", "finish"  # with masked sums
_VERSION = re.compile(r"version-[0-9]{6,}-[0-9a-f]{8}")  # a folder of a checkpoint; see solver/checkpoint/versions.py
logger = logging.getLogger("dmtrl")


class Site:
    """A site in its folder, which `create_site` made."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.policy: Policy = read_policy(self.folder)
        self.ledger = Ledger(self.folder / LEDGER)
        self._study: Study | None = None
        self._approved: tuple[int, int] | None = None  # the version of the approval that `_study` was read with
        self._data: SiteTable | None = None
        self._most: dict[str, approval.Leaving] | None = None  # what each message may hold, and how often it may leave
        self._begun: messages.Begin | None = None
        self._worker: Worker | None = None
        self._masked: MaskedSite | None = None
        self._handlers: dict[type, Callable[[Any], Any]] = {
            messages.Hello: self._hello,
            messages.CountCells: self._statistics,
            messages.MeasureSpread: self._statistics,
            messages.SumFeatures: self._statistics,
            messages.MeasureNorms: self._statistics,
            messages.Begin: self._begin,
            messages.Release: self._release,
            messages.ShareKey: self._share_key,
            messages.SumUp: self._sum_up,
            messages.Publish: self._publish,
            messages.Finish: self._finish,
        }

    @property
    def name(self) -> str:
        return self.policy.site

    def answer(self, message: Message) -> Message:
        """Answer any message of a study, and write what leaves into the ledger first.

        Raises
        ------
        RefusedBySiteError
            If the approval, the policy or the data do not allow an answer. Its `reason` may leave the site.
        """
        study = ""
        try:
            study = self.study.hash
            if message.name not in ANSWER_NAMES:
                raise RefusedBySiteError("the coordinator sent a message that this version of dmtrl does not answer")
            self.policy.check_message(ANSWER_NAMES[message.name])
            answer = self._answer(message)
            with self.ledger.locked():  # the number of messages is that of the line that follows
                self._require_approved(study)  # still: the staff may have approved another one meanwhile
                self._check_leaving(answer)
                self.ledger.record(study, answer)
        except RefusedBySiteError as refusal:
            self._record_refusal(study, refusal)
            raise
        except Exception as error:  # its text may quote the data
            logger.exception("%s could not answer %r", self.name, message.name)
            reason = f"{type(error).__name__} while it answered {message.name!r}; the log of the site has the details"
            failure = RefusedBySiteError(reason, f"{type(error).__name__}: {error}")
            self._record_refusal(study, failure)
            raise failure from error
        finally:
            if self._study is not None and self._study.hash != study:  # another one was approved meanwhile, or none is
                self._forget()
        return answer

    def _forget(self) -> None:
        """Drop what belongs to the study before."""
        self._data = self._most = self._begun = self._worker = self._masked = None

    def _check_leaving(self, answer: Message) -> None:
        """Refuse to send more than the approval says. The same bytes again tell nothing new."""
        if self._most is None:
            self._most = {item.message: item for item in approval.what_leaves(self.study, self.policy)}
        most = self._most[answer.name]
        if numbers_in(answer) > most.numbers:
            raise RefusedBySiteError(f"the message {answer.name!r} may hold at most {most.numbers:,} numbers")
        if self.ledger.times(self.study.hash, answer.name) >= most.times and not self.ledger.has_left(answer):
            raise RefusedBySiteError(f"the message {answer.name!r} may leave this site at most {most.times:,} times")

    def _record_refusal(self, study: str, refusal: RefusedBySiteError) -> None:
        """Write a line about a refusal, as long as there are not too many: a coordinator could fill the disk."""
        written = self.ledger.refusals(study)
        if written < MOST_REFUSALS:
            logger.warning("%s refused: %s", self.name, refusal.detail or refusal.reason)
            last = "; further refusals of this study are not recorded" if written == MOST_REFUSALS - 1 else ""
            self.ledger.record_refusal(study, refusal.reason + last)

    def refuse_job(self, reason: str) -> None:
        """Record that a job of the server was not started."""
        self._record_refusal("", RefusedBySiteError(reason))

    @property
    def study(self) -> Study:
        """The approved study. RefusedBySiteError if there is none, or if its file was changed after the approval."""
        given = approval.version_of_approval(self.folder)
        if self._study is None or given != self._approved:  # it may be withdrawn or replaced during a run
            study = approval.approved_study(self.folder)
            if self._study is not None and study.hash != self._study.hash:
                self._forget()
            self._study, self._approved = study, given
        return self._study

    @property
    def data(self) -> SiteTable:
        """The rows of the site, checked against the study. RefusedBySiteError if they do not fit."""
        if self._data is None:
            path = self.folder / self.policy.data
            if not path.exists():
                raise RefusedBySiteError("its data file does not exist", f"{path} does not exist")
            check = check_file(self.study, path, self.policy.minimum_rows)
            if check.data is None:
                first = check.errors[0]
                what = "" if self.study.privacy.private else f": {first.public}"  # which column is not told
                raise RefusedBySiteError(f"its file does not fit the study{what}", first.text)
            self._data = check.data
        return self._data

    def _answer(self, message: Message) -> Message:
        privacy = self.study.privacy
        if privacy.private and message.name not in _PRIVATE:
            raise RefusedBySiteError(
                f"the study is private: the answer to {message.name!r} would leave without noise, and is withheld"
            )
        if privacy.masked and message.name not in _MASKED:
            raise RefusedBySiteError(
                f"the study has masked sums: the answer to {message.name!r} would show numbers of this site alone"
            )
        try:
            request = decode(message)
        except ValueError as error:
            raise RefusedBySiteError(f"the coordinator sent something that this site cannot read: {error}") from None
        if type(request) in self._handlers:
            if hasattr(request, "study"):
                self._require_approved(request.study)
            return encode(self._handlers[type(request)](request))
        held = ask_worker(self.worker, rounds.Describe())
        check_request(self.study, held, request)
        if isinstance(request, rounds.HoldOut):
            check_folds(self.study, held, request, self.policy.minimum_held_out)
        if isinstance(request, rounds.Save):
            return encode(self._save(request))
        if isinstance(request, rounds.Restore):
            return self.worker.answer(encode(rounds.Restore(source=str(self._checkpoint(request.source)))))
        return self.worker.answer(message)

    def _hello(self, request: messages.Hello) -> messages.Welcome:
        if self.study.privacy.private:
            self._releases.check_budget()
        elif self.policy.private_only:
            raise RefusedBySiteError("the policy of this site allows only studies that add noise")
        data = self.data
        rows, single = data.rows_per_task.astype(np.int64), np.where(data.usable, data.single, 0)
        if self.study.privacy.masked:
            rows = np.minimum(rows, self.study.limits.rows_per_task)
        return messages.Welcome(dmtrl=version("dmtrl"), rows=rows, single=single)

    def _require_approved(self, study: str) -> None:
        if study != self.study.hash:
            raise RefusedBySiteError(
                f"the study with the hash {study[:16]} was not approved here; the approved one has the hash "
                f"{self.study.hash[:16]}"
            )

    def _preparation(self, text: str) -> Preparation:
        """The preparation of a message, checked before features are computed."""
        prepared = preparation.from_json(text)
        preparation.check_against(self.study, prepared)
        return prepared

    def _features(self, text: str) -> np.ndarray:
        """The prepared features of the fit, sorted by task."""
        return self._preparation(text).transform(self.data.train_table)

    def _statistics(self, request: Any) -> Any:
        """The sums of this site that a request for statistics asks for."""
        study = self.study
        if isinstance(request, messages.CountCells):
            return preparation.cell_counts(study, self.data.train_table)
        if isinstance(request, messages.MeasureSpread):
            return preparation.spread(study, self.data.train_table, request.means)
        X = self._features(request.preparation)
        if isinstance(request, messages.SumFeatures):
            return preparation.feature_sums(X, self.data.train_y)
        preparation.check_centres(study, X.shape[1], request.x_centre, request.y_centre)
        return preparation.norms(X, self.data.train_y, request.x_centre, request.y_centre)

    def _begin(self, request: messages.Begin) -> messages.Begun:
        """Check the prepared problem, and only then store it in place of the one before."""
        self._check_begin(request)
        content, stored = encode(request).encode(), self._run / "begin.message"
        features, units = len(request.x_centre), int((request.numbers >= 0).sum())
        answer = messages.Begun(features=features, units=units, problem=hashlib.sha256(content).hexdigest())
        self._check_leaving(encode(answer))
        rounds_here = self.data.fitted.any() and not (self.study.privacy.private or self.study.privacy.masked)
        worker = self._build_worker(request) if rounds_here else None
        if not stored.exists() or stored.read_bytes() != content:
            shutil.rmtree(self._run, ignore_errors=True)  # checkpoints of another problem
            self._run.mkdir(parents=True)
            storage.write(str(stored), content)
        self._begun, self._worker = request, worker
        return answer

    @property
    def _releases(self) -> SiteReleases:
        return SiteReleases(self.folder, self.policy, self.study, self.ledger)

    def _release(self, request: messages.Release) -> messages.Released:
        if not self.study.privacy.private:
            raise RefusedBySiteError("the coordinator asked for a private release, but the study is not private")
        return self._releases.answer(request, lambda: self._blocks(self.begun))

    @property
    def masked(self) -> MaskedSite:
        """This site's part in masked sums."""
        if not self.study.privacy.masked:
            raise RefusedBySiteError("the coordinator asked for masked sums, but the study does not have them")
        if self._masked is None:
            self._masked = MaskedSite(
                self.folder / "masked",
                self.study,
                self._part_of_sum,
                lambda: self._blocks(self.begun),
                lambda: float(models.unfitted(self.study, 1.0).intercept_ridge(coordinates_of(self.begun))),
            )
        return self._masked

    def _share_key(self, request: messages.ShareKey) -> messages.SharedKey:
        with self.ledger.locked():
            return self.masked.share_key(request)

    def _sum_up(self, request: messages.SumUp) -> messages.Masked:
        with self.ledger.locked():  # two processes must not use the masks of one sum for different numbers
            return self.masked.answer(request)

    def _publish(self, request: messages.Publish) -> messages.Published:
        if self.study.results.coordinator != "weights":
            raise RefusedBySiteError("the study does not give weights to the coordinator")
        return messages.Published(weights=self.masked.weights())

    def _part_of_sum(self, request: messages.SumUp) -> np.ndarray:
        """The numbers of this site for a masked sum about the preparation."""
        if request.question == "rows":
            return np.array([float(self.data.rows_per_task.sum())])
        answer = self._statistics(preparation.request_of(request))
        # in the order of the fields, which the coordinator expects (preparation.split_counts, MaskedSums.ask_all)
        return np.concatenate([np.ravel(values) for values in vars(answer).values()])

    def _check_begin(self, begin: messages.Begin) -> None:
        """Refuse a problem that does not fit the study, the policy or the tasks of this site."""
        self._require_approved(begin.study)
        data, numbers = self.data, begin.numbers
        if numbers.shape != data.fitted.shape or ((numbers >= 0) != data.fitted).any():
            raise RefusedBySiteError("the coordinator numbered other tasks than those that this site takes part with")
        width = len(self._preparation(begin.preparation).feature_names)
        preparation.check_coordinates(self.study, width, coordinates_of(begin))
        if self.study.privacy.private:
            preparation.check_declared(self.study, begin.preparation, coordinates_of(begin))
        names, counts = self.study.task_names(self.name), data.rows_per_task
        for i in np.flatnonzero(data.fitted):
            self.policy.check_rows(names[i], int(counts[i]), width + 1)

    @property
    def _run(self) -> Path:
        return self.folder / "run"

    @property
    def begun(self) -> messages.Begin:
        """The prepared problem, from the disk after a restart."""
        if self._begun is None:
            stored = self._run / "begin.message"
            if not stored.exists():
                raise RefusedBySiteError("no study has begun here; the coordinator must send 'begin' before rounds")
            begun = decode(Message.decode(stored.read_bytes()))
            self._check_begin(begun)
            self._begun = begun
        return self._begun

    @property
    def worker(self) -> Worker:
        """The worker with the rows of the prepared problem."""
        if self._worker is None:
            self._worker = self._build_worker(self.begun)
        return self._worker

    def _build_worker(self, begin: messages.Begin) -> Worker:
        return Worker(self._blocks(begin), self.study.loss)

    def _blocks(self, begin: messages.Begin) -> Blocks:
        """The rows of a problem that `_check_begin` accepted."""
        return blocks_of(self.study, self.name, self.data, begin, self._features(begin.preparation))

    def _checkpoint(self, folder: str) -> Path:
        """The folder of a checkpoint at this site, from the coordinator's name for it."""
        name = re.split(r"[/\\]", folder)[-1]
        if not _VERSION.fullmatch(name):
            raise RefusedBySiteError("the coordinator named a checkpoint folder that is not one")
        return self._run / "checkpoint" / name

    def _save(self, request: rounds.Save) -> rounds.Saved:
        """Write the checkpoint into the site's own folder, and keep only it and the last complete one."""
        folder = self._checkpoint(request.to)
        saved = ask_worker(self.worker, rounds.Save(to=str(folder)))
        if saved.error is not None:
            logger.warning("%s could not write a checkpoint: %s", self.name, saved.error)
            return rounds.Saved(error=f"{self.name} could not write its checkpoint", kept=True)
        keep = {folder.name, self._checkpoint(request.last).name if request.last else ""}
        for old in folder.parent.iterdir():
            if old.name not in keep and _VERSION.fullmatch(old.name):
                shutil.rmtree(old, ignore_errors=True)
        return rounds.Saved(file=saved.file, kept=True)

    def _finish(self, request: messages.Finish) -> messages.Finished:
        begin, study = self.begun, self.study
        self._check_begin(begin)
        names, width, weights = json.loads(request.names), len(begin.x_centre) + 1, request.weights
        if study.privacy.masked and study.results.sites == "own":  # nobody else knows them
            names, weights = study.task_names(self.name), self.masked.weights()
            names = [name for name, fitted in zip(names, self.data.fitted, strict=True) if fitted]
        if not (are_finite(weights, (len(names), width)) and are_finite(request.common, (width,))):
            raise RefusedBySiteError("the coordinator sent a result whose weights do not fit the study")
        prepared, coordinates = preparation.from_json(begin.preparation), coordinates_of(begin)
        strengths, certificate = Strengths(request.reg_lambda, request.tau), Certificate(request.primal, request.dual)
        model = models.received(study, prepared, coordinates, names, weights, request.common, strengths, certificate)
        answer = held_out_errors(study, self.name, self.data, model, self.policy.minimum_held_out)
        errors = {name: values.tolist() for name, values in vars(answer).items()}
        if study.privacy.private or study.privacy.masked:  # the site sees its errors, the coordinator does not
            answer = messages.Finished(**{name: np.zeros(len(values)) for name, values in vars(answer).items()})
        self._check_leaving(encode(answer))  # a result too many does not replace the model
        results = self.folder / "results"
        results.mkdir(exist_ok=True)
        model.save(results / MODEL)
        storage.write(str(results / "held_out.json"), json.dumps(errors).encode())
        shutil.rmtree(self._run / "checkpoint", ignore_errors=True)
        return answer
