"""`gpushare report`: the dashboard's pictures of a node or a job, in one file.

contents  what a report says, as the daemon tells it to this user
page      as HTML: the dashboard's page with the report in it
table     as CSV
picture   as PNG
file      how the file is written
"""
