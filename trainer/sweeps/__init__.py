"""Many runs: launchers, the job ledger, searches, comparison, verdicts and the dashboard."""
