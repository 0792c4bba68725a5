"""Books of prompts that many workers answer, and that finish in any order.

1. `MergedDataset` → `PromptLedger.take` → prompts: due retries first, then new ones in the stream's order
2. prompts → `done`, `drop`, `retry`, `score` → what is open, due and left out
3. ledger → `state_dict` → plain JSON → `load_state_dict` → what was open is given again, what was settled never
4. ledger → `serve` → `LedgerServer` ↔ `LedgerClient`s in other processes, which hold prompts on a lease

| file | what is in it |
|---|---|
| `prompts.py` | a prompt, and how it is named |
| `scores.py` | the newest score of each record, and what is left out |
| `ledger.py` | the books |
| `wire.py` | prompts as JSON |
| `server.py` | requests of clients, each done once |
| `client.py` | the other end |
"""

__all__ = ["client", "ledger", "prompts", "scores", "server", "wire"]
