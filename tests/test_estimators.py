from sklearn.utils.estimator_checks import parametrize_with_checks
from dmtrl import MTRLClassifier, MTRLRegressor, RFF


@parametrize_with_checks([MTRLRegressor(), MTRLClassifier(), RFF()])
def test_conformance(estimator, check):
    check(estimator)
