"""What a merge does to the tasks: figures, intervals, and the rows that a line keeps. Naming it loads no tensor
library."""
