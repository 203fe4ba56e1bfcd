-- Slurm's plug-in for submission where a site has no other: JobSubmitPlugins=lua in slurm.conf, and this file and
-- gpushare_submit.lua beside it.

local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "/etc/slurm/"
local gpushare = dofile(here .. "gpushare_submit.lua")

gpushare.partitions = {gpushare = true}

function slurm_job_submit(job, partitions, user)
   return gpushare.submit(job, partitions, user)
end

function slurm_job_modify(job, record, partitions, user)
   return gpushare.modify(job, record, user)
end

return slurm.SUCCESS
