"""Sources of examples, their order, and the one pipeline that makes batches of them.

A source is any object with `__len__` and `__getitem__(i) -> dict[str, np.ndarray]`. It may also have `vocab_size: int`,
`fingerprint() -> str` and `zeros() -> dict[str, np.ndarray]` (an example of zeros, so that shapes are known unread).
"""
