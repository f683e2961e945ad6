"""The end of a study at a site: its model, and the errors on the rows that it holds out."""

import json
import shutil

import numpy as np

from dmtrl import storage
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.base import Protection, SiteHalf
from dmtrl.federation.site.problem import SiteProblem
from dmtrl.federation.site.rows import held_out_errors
from dmtrl.federation.study import models, preparation
from dmtrl.federation.study.preparation import are_finite
from dmtrl.protocol.codec import encode
from dmtrl.protocol.study import Finish, Finished
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.problem import Strengths

MODEL = "model.dmtrl"


class Finisher:
    """Makes and stores the model of a site from the result of the study."""

    def __init__(self, problem: SiteProblem, half: SiteHalf, protection: Protection):
        self._problem, self._half, self._protection = problem, half, protection

    def finish(self, request: Finish) -> Finished:
        problem, study = self._problem, self._problem.study
        begin, site = problem.begun, problem.policy.site
        problem.check(begin)
        names, weights = json.loads(request.names), request.weights
        own = self._half.own_weights()
        if own is not None:
            possible, weights = study.task_names(site), own
            names = [name for name, fitted in zip(possible, problem.data.fitted, strict=True) if fitted]
        width = len(begin.x_centre) + 1
        if not (are_finite(weights, (len(names), width)) and are_finite(request.common, (width,))):
            raise RefusedBySiteError("the coordinator sent a result whose weights do not fit the study")
        prepared, coordinates = preparation.from_json(begin.preparation), problem.coordinates()
        strengths = Strengths(request.reg_lambda, request.common_strength)
        certificate = Certificate(request.primal, request.dual)
        model = models.received(study, prepared, coordinates, names, weights, request.common, strengths, certificate)
        answer = held_out_errors(study, site, problem.data, model, problem.policy.minimum_held_out)
        errors = {name: values.tolist() for name, values in vars(answer).items()}
        if not self._protection.tells_errors:  # the site sees its errors, the coordinator does not
            answer = Finished(**{name: np.zeros(len(values)) for name, values in vars(answer).items()})
        problem.gate.check_leaving(encode(answer))  # a result too many does not replace the model
        results = problem.folder / "results"
        results.mkdir(exist_ok=True)
        model.save(results / MODEL)
        storage.write(str(results / "held_out.json"), json.dumps(errors).encode())
        shutil.rmtree(problem.folder / "run" / "checkpoint", ignore_errors=True)
        return answer
