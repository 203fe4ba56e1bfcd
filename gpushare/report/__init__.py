"""`gpushare report`: the dashboard's pictures of a node, a job or a cluster's queues, in one file.

contents  what a report of a node or a job says, as the daemon tells it to this user
queues    what a report of a cluster's queues says
plays     what a report of a simulated run says
page      as HTML: the dashboard's page with the report in it
table     as CSV; queue_table: of queues
picture   as PNG; queue_picture: of queues; drawing: what both draw with
file      how the file is written
"""
