"""Pages in a browser: doors only, like the command line. What they show is made by the programs."""
