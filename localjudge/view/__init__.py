"""`localjudge view`: the report's pages over many runs, live, and a place for people to label cases."""
