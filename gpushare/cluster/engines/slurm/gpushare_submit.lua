-- gpushare's part of Slurm's plug-in for submission. job_submit.lua calls it, or a site's own one does:
--
--   local gpushare = dofile("/etc/slurm/gpushare_submit.lua")
--   gpushare.partitions = {gpushare = true}     jobs there have to say --gpushare=...
--   gpushare.operators = {[64030] = true}       users beside root whose changes are not checked
--   gpushare.enforce = true                     there is no allocator: Slurm places jobs, by shards or counters
--
-- A job with --gpushare is held: only the allocator starts it. What its user asks for goes into its AdminComment, which
-- only operators change. In its Comment the allocator keeps where it runs. So users must not write comments that look
-- like that, or change what was decided.

local M = {partitions = {}, operators = {}, enforce = false}

-- engines/slurm/request.py has the same list.
M.KEYS = {
   "gpus", "request", "limit", "queue", "priority", "preemptible", "min_run_time", "movable", "checkpoint_every",
}

-- Where Slurm places jobs; engines/slurm/shards.py reads them.
local PLACED_KEYS = {"limit"}

local OURS = "gpushare "
local HELD = "gpushare held "

local function refuse(format, ...)
   slurm.log_user("gpushare: " .. format, ...)
   return slurm.ERROR
end

local function begins(text, with)
   return text ~= nil and string.sub(text, 1, #with) == with
end

-- The words of --gpushare, or of --comment=gpushare:... where the SPANK plug-in is not there. nil: it says nothing.
local function asked(job)
   local env = job.spank_job_env
   if env ~= nil then
      for _, line in pairs(env) do
         local words = string.match(tostring(line), "^[%w_]*GPUSHARE=(.*)$")
         if words ~= nil then
            return words
         end
      end
   end
   if begins(job.comment, "gpushare:") then
      return string.sub(job.comment, #"gpushare:" + 1)
   end
   return nil
end

-- What is wrong with the words, of which there may be these; nil: nothing.
local function mistake(words, keys)
   if words == "default" then
      return nil
   end
   for word in string.gmatch(words, "[^,]+") do
      local key, value = string.match(word, "^([%a_]+)=([%w%._%%-]+)$")
      if key == nil then
         return string.format("cannot read %q: write words as in request=25%%,limit=80%%,queue=vision", word)
      end
      local known = false
      for _, one in ipairs(keys) do
         known = known or one == key
      end
      if not known then
         return string.format("no word %q: there are %s", key, table.concat(keys, ", "))
      end
   end
   return nil
end

local function partition_of(job, partitions)
   if job.partition ~= nil then
      return job.partition
   end
   for name, one in pairs(partitions) do
      if one.flag_default == 1 then
         return name
      end
   end
   return ""
end

local function managed(names)
   for name in string.gmatch(names, "[^,]+") do
      if M.partitions[name] then
         return true
      end
   end
   return false
end

local function gres_of(job)
   local all = ""
   for _, text in ipairs({job.gres or "", job.tres_per_node or "", job.tres_per_job or "", job.tres_per_socket or "",
                          job.tres_per_task or ""}) do
      all = all .. " " .. text
   end
   return all
end

local function submit(job, partitions, user)
   if begins(job.comment, OURS) and not M.operators[user] and user ~= 0 then
      return refuse("a comment must not begin with 'gpushare ': leave --comment out")
   end
   local words = asked(job)
   if words == nil then
      local name = partition_of(job, partitions)
      if managed(name) then
         return refuse("partition %s is for jobs that say what they need of a GPU: --gpushare=request=25%%", name)
      end
      return slurm.SUCCESS
   end
   local wrong = mistake(words, M.enforce and PLACED_KEYS or M.KEYS)
   if wrong ~= nil then
      return refuse("--gpushare: %s", wrong)
   end
   local gres = gres_of(job)
   if M.enforce then
      if string.match(gres, "shard") or string.match(gres, "gpumem") then
         return slurm.SUCCESS
      end
      return refuse("--gpushare says what a job may use beyond its shards: ask for some, with --gres=shard:25")
   end
   if string.match(gres, "gpu") or string.match(gres, "shard") then
      return refuse("--gpushare beside --gres or --gpus: say how many GPUs of each node it takes with --gpushare=gpus=2")
   end
   local kept = "gpushare ask=" .. (words == "default" and "" or words)
   if job.min_nodes ~= nil and job.min_nodes > 1 and job.min_nodes < slurm.NO_VAL then
      kept = kept .. " count=" .. math.floor(job.min_nodes)
   end
   if job.req_nodes ~= nil and job.req_nodes ~= "" then
      kept = kept .. " nodes=" .. job.req_nodes
   end
   job.admin_comment = kept
   if begins(job.comment, "gpushare:") then
      job.comment = ""
   end
   if job.priority == 0 then
      job.comment = HELD .. "{}"
   end
   job.priority = 0
   return slurm.SUCCESS
end

local function modify(job, record, user)
   if user == 0 or M.operators[user] then
      return slurm.SUCCESS
   end
   if begins(job.comment, OURS) then
      return refuse("a comment must not begin with 'gpushare '")
   end
   if not begins(record.admin_comment, OURS) then
      return slurm.SUCCESS
   end
   if job.comment ~= nil then
      return refuse("the comment of job %d says where it runs, and cannot be changed", record.job_id)
   end
   if job.gres ~= nil or job.tres_per_node ~= nil or job.req_nodes ~= nil then
      return refuse("where job %d runs is decided by gpushare: cancel it, and submit another one", record.job_id)
   end
   if job.priority ~= nil and job.priority ~= slurm.NO_VAL then
      local said = record.comment or ""
      local rest = begins(said, HELD) and string.sub(said, #HELD + 1)
         or begins(said, OURS) and string.sub(said, #OURS + 1) or "{}"
      job.comment = (job.priority == 0 and HELD or OURS) .. rest
      job.priority = 0
   end
   return slurm.SUCCESS
end

-- Slurm takes a job as it is by then where a plug-in has failed, so a failure has to be an answer.
local function safely(what, ...)
   local done, answer = pcall(what, ...)
   if not done then
      slurm.log_error("gpushare: %s", tostring(answer))
      return refuse("its plug-in for submission has failed: see the log of slurmctld")
   end
   return answer
end

function M.submit(...)
   return safely(submit, ...)
end

function M.modify(...)
   return safely(modify, ...)
end

return M
