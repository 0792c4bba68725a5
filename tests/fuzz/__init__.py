"""Damaged and hostile files, made from sound ones: `kind → case → outcome`.

1. `mutation`: content, random numbers → content with some of it changed
2. `kinds`: what is read, the sound files that cases are made of, and how all of it is read and compared
3. `campaign`: cases of a kind, in child processes with bounds of memory and time → how many ended how
"""
