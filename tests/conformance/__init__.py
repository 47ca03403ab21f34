"""Scripts as users write them, one idea each: the same bits on any number of workers, or refused.

`scripts/` was written from the documentation alone. Each says in a comment what is to come of it:

    # expect: same                              one digest, alone and on any number of workers
    # expect: refused: WORDS                    refused with a sentence that has these words
    # expect: same or refused: WORDS            either; what it may not do is end with other weights

`host` runs a script in a forked process, `running` alone and on workers of which some are killed.
"""
