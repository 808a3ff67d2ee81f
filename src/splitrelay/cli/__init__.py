"""Parse the commands and print their results. Commands import the other packages, so that --help loads none of them."""
