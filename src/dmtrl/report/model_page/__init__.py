"""The page about one fitted model."""

from dmtrl.report.model_page.facts import ModelFacts, model_facts
from dmtrl.report.model_page.page import model_page, page_from_facts, write_model_page

__all__ = ["ModelFacts", "model_facts", "model_page", "page_from_facts", "write_model_page"]
