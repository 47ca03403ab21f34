"""Every program and every command of the documentation, run as it is printed.

A page is a story: one empty folder, one home, its blocks one after the other. What a block is, its
fence says (the first word is what GitHub highlights by; it shows none of the rest):

    ```sh                         commands, by bash: all of them end with 0
    ```console                    the same with a prompt (`$ `) and output; each command by itself.
                                  `^C` in the output: Ctrl-C was pressed; `error` at its beginning:
                                  the command is refused, with that line
    ```python, ```yaml, ...       a file, if its first line is a comment that names it, as in
                                  `# job.yaml`; else Python is run as it is
    ```text, ```diff              nothing to run: output, a drawing, a change

and behind the first word:

    exit=1                        the block (of a console: its last command) ends with that
    output                        what is printed must come: line by line, whatever its numbers are
    when="COMMAND"                what the reader waits for first: until that command ends with 0
    skip="REASON"                 it cannot run here; `test_blocks.py` has the list of all of these
"""
