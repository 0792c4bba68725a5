"""What the tests would miss: `python -m tests.mutants` changes one line at a time and sees whether a test fails.

1. a module's source → `operators` → mutants, each with one operator, number, condition or call changed
2. a fixed seed → `__main__` → some of them, one after another, in a copy of the tree, each against its room's tests
3. survivors → `judged` → a sentence for each that no test can or should kill

It takes minutes to hours, so it is not part of `make test`. A survivor gets a test, or its sentence.
"""
