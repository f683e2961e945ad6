"""At a site: its connection to the server and its job process."""
