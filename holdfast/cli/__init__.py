"""The command `holdfast`: what people see.

It parses, calls one function of a package below, and shows the result: a table on a terminal, or
JSON with `--json`. It decides nothing. Each command imports what it needs when it runs, so that
`holdfast --help` stays fast and a light install stays enough.
"""
