"""Everything that happens at a site: data check, policy, approval, ledger, privacy budget, answers."""
