"""Private versions of the small study of three clinics."""

from dmtrl.federation.study import Study, parse_study
from support.studies import CLINIC

PRIVACY = """[privacy]
mode = "{mode}"
epsilon = {epsilon}
row_norm = 2.5
{more}

[columns.age]"""


def private_text(mode: str = "auto", loss: str = "logistic", epsilon: float = 4.0, more: str = "") -> str:
    """The file of a private study; a regression loss predicts the cost."""
    text = CLINIC.replace("lambda = [0.3, 0.03]\ncommon = [0.0, 1.0]\nfolds = 3", "lambda = 0.03")
    text = text.replace('kind = "number"\n\n[columns.ward]', 'kind = "number"\nrange = [-4, 4]\n\n[columns.ward]')
    text = text.replace('loss = "logistic"', f'loss = "{loss}"')
    if loss in ("squared", "huber", "absolute", "quantile=0.8", "epsilon_insensitive"):
        target = text[text.index("[target]") : text.index("[fit]")]
        text = text.replace(target, '[target]\ncolumn = "cost"\nkind = "regression"\nrange = [-10, 30]\n\n')
    return text.replace("[columns.age]", PRIVACY.format(mode=mode, epsilon=epsilon, more=more), 1)


def private_study(mode: str = "auto", loss: str = "logistic", epsilon: float = 4.0, more: str = "") -> Study:
    return parse_study(private_text(mode, loss, epsilon, more).encode(), "clinic.toml")


def masked_text(tolerance: str = "tolerance = 1e-7", results: str = "", limits: str = "sites = 3") -> str:
    """The file of a study with masked sums."""
    text = CLINIC.replace(
        "lambda = [0.3, 0.03]\ncommon = [0.0, 1.0]\nfolds = 3", f"lambda = 0.03\ncommon = 1.0\n{tolerance}"
    )
    tables = f'[limits]\n{limits}\n[privacy]\naggregation = "masked"\n{results}\n'
    return text.replace("[columns.age]", tables + "[columns.age]", 1)
