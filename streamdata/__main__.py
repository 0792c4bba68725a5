"""`python -m streamdata`: the `streamdata` command, where it is not on the path."""

from streamdata.tools.cli.main import app

if __name__ == "__main__":
    app(prog_name="python -m streamdata")
