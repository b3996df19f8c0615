"""Small files beside the tail that say how far the log has come: checkpoints, the ledger, the newest segment."""
